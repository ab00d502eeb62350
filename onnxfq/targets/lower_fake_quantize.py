"""Fake-quantized models lowered to Q/DQ: FakeQuantize nodes, and rounding that is written out."""

from __future__ import annotations

import logging
from dataclasses import replace

import onnx

from onnxfq.graph.io.load import load
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.quantized.extract_fake_quantize import Lifted, drop_copies, has_fake_quantize, lift_fake_quantize
from onnxfq.quantized.recognize_fake_quantize import recognize_rounding
from onnxfq.targets.target import DEFAULT_TARGET, prepare_model, target_by_name

log = logging.getLogger(__name__)


def lift(exported: onnx.ModelProto, target: str = DEFAULT_TARGET) -> Lifted | None:
    """Return the float model, plan and encodings of an export; None if nothing in it is fake-quantized.

    Args:
        exported: the model with FakeQuantize nodes.
        target: what it is prepared for; the changes for the default one keep the numbers on every target.

    Raises PlanError for fake quantization that QuantizeLinear cannot express.
    """
    model = prepare_model(load(exported), target)
    if any(node.op_type == "Round" for node in model.proto.graph.node):
        model = recognize_rounding(model)
    return lift_fake_quantize(model) if has_fake_quantize(model) else None


def lower_export(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Return an export with pairs for its FakeQuantize nodes, and their number; itself without any."""
    count = sum((node.op_type, node.domain) == ("FakeQuantize", ONNXFQ_DOMAIN) for node in proto.graph.node)
    lifted = lift(proto) if count else None
    return proto if lifted is None else lower(lifted), count


def lower(lifted: Lifted) -> onnx.ModelProto:
    """Return the Q/DQ model of the target of the plan, at the lowest opset for it, not below the export's.

    A model that multiplies by 1 / scale, as torch's functions do, gets a warning. QuantizeLinear divides: a
    value within a rounding error of the midpoint between two numbers may round to the other one.
    """
    if lifted.reciprocal:
        log.warning(
            "%d of the model's quantizers multiply by 1 / scale, QuantizeLinear divides: values midway "
            "between two steps may round differently; train with arithmetic='divide'",
            lifted.reciprocal,
        )
    form = replace(target_by_name(lifted.plan.target).form, zero_points=True)
    return drop_copies(with_qdq(lifted.model, lifted.plan, lifted.encodings, form=form)).proto

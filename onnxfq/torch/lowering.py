"""From an export with fake quantization in it to standard Q/DQ."""

from __future__ import annotations

import logging

import onnx

from onnxfq.graph.io.load import load
from onnxfq.passes.extract_fake_quantize import Lifted, drop_copies, has_fake_quantize, lift_fake_quantize
from onnxfq.passes.insert_qdq import InsertQdq
from onnxfq.passes.recognize_fake_quantize import recognize_rounding
from onnxfq.targets.registry import DEFAULT_TARGET, prepare_model

log = logging.getLogger(__name__)


def lift(exported: onnx.ModelProto) -> Lifted | None:
    """Return the float model, plan and encodings of an export; None when nothing in it is fake-quantized.

    Raises PlanError for what QuantizeLinear cannot say.
    """
    # An export names no target; what the default one needs has the same numbers everywhere.
    model = prepare_model(load(exported), DEFAULT_TARGET)
    if any(node.op_type == "Round" for node in model.proto.graph.node):
        model = recognize_rounding(model)
    return lift_fake_quantize(model) if has_fake_quantize(model) else None


def lower(lifted: Lifted) -> onnx.ModelProto:
    """Return the Q/DQ model, at the lowest opset from the export's on that has its formats.

    A model that multiplies by 1 / scale, as torch's own functions do, is told of: QuantizeLinear divides, and
    a value within a rounding of the middle between two numbers may go to the other one.
    """
    if lifted.reciprocal:
        log.warning(
            "%d of the model's quantizers multiply by 1 / scale, as torch does, and QuantizeLinear divides: "
            "values in the middle between two steps may go to the other one; arithmetic='divide' trains with "
            "ONNX's numbers",
            lifted.reciprocal,
        )
    inserted = InsertQdq(lifted.plan, lifted.encodings).run(lifted.model).model
    return drop_copies(inserted).proto

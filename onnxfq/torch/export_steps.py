"""Steps around an export: frozen quantizers, torch.ao's modules that only round, lowering to Q/DQ.

torch.ao's FakeQuantize modules branch on buffers to decide whether to observe, which an export cannot follow.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from onnxfq.errors import StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.passes.extract_fake_quantize import Lifted, drop_copies, has_fake_quantize, lift_fake_quantize
from onnxfq.passes.insert_qdq import InsertQdq
from onnxfq.passes.recognize_fake_quantize import recognize_rounding
from onnxfq.targets.target import DEFAULT_TARGET, prepare_model
from onnxfq.torch.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from onnxfq.torch.layers import fold_weight, refresh
from onnxfq.torch.quantizer import quantizers

BAKED = "baked_weight"


@contextlib.contextmanager
def freeze_grids(model: nn.Module) -> Iterator[None]:
    """Freeze all grids of `model`, and restore everything afterwards.

    Raises StatisticsError, with the quantizer's name, if one has no scale yet.
    """
    with torch.no_grad():
        refresh(model)
    for name, quantizer in quantizers(model).items():
        needed = quantizer.fake_quant_enabled and not quantizer.may_be_unused
        if needed and not quantizer.is_initialized:
            raise StatisticsError(
                f"quantizer {name!r} has no scale yet; run data through the model in compute_encodings"
            )
    folded = [module for module in model.modules() if module.__dict__.get("folded_norm") is not None]
    with contextlib.ExitStack() as stack:
        for quantizer in quantizers(model).values():
            stack.enter_context(quantizer.freeze_grid())
        for layer in folded:
            layer.register_buffer(BAKED, fold_weight(layer).detach().clone(), persistent=False)
            stack.callback(layer.__delattr__, BAKED)
        yield


@contextlib.contextmanager
def disable_observers(model: nn.Module) -> Iterator[None]:
    """Let the FakeQuantize modules of torch.ao in `model` only round, not observe."""
    # Imported already if the model has such modules.
    home = sys.modules.get("torch.ao.quantization.fake_quantize")
    base = None if home is None else home.FakeQuantizeBase
    # onnxfq's own count as such modules too; their switches are plain.
    changed = [
        module
        for module in model.modules()
        if base is not None and isinstance(module, base) and isinstance(module.fake_quant_enabled, Tensor)
    ]
    try:
        for module in changed:
            module.forward = _rounding_of(module)
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _rounding_of(module: Any) -> Callable[[Tensor], Tensor]:
    if not bool(module.fake_quant_enabled[0]):
        return lambda x: x
    observer = module.activation_post_process
    low, high = observer.quant_min, observer.quant_max
    scale, zero_point = module.scale.detach().clone(), module.zero_point.detach().clone()
    if module.is_per_channel:
        axis = module.ch_axis
        return lambda x: fake_quantize_per_channel_affine(x, scale, zero_point, axis, low, high)
    return lambda x: fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)


log = logging.getLogger(__name__)


def lift(exported: onnx.ModelProto) -> Lifted | None:
    """Return the float model, plan and encodings of an export; None if nothing in it is fake-quantized.

    Raises PlanError for fake quantization that QuantizeLinear cannot express.
    """
    # An export names no target; the changes for the default one keep the numbers on every target.
    model = prepare_model(load(exported), DEFAULT_TARGET)
    if any(node.op_type == "Round" for node in model.proto.graph.node):
        model = recognize_rounding(model)
    return lift_fake_quantize(model) if has_fake_quantize(model) else None


def lower(lifted: Lifted) -> onnx.ModelProto:
    """Return the Q/DQ model, at the lowest opset, not below the export's, that has its number formats.

    A model that multiplies by 1 / scale, as torch's functions do, gets a warning: QuantizeLinear divides, and
    a value within a rounding error of the midpoint between two numbers may round to the other one.
    """
    if lifted.reciprocal:
        log.warning(
            "%d of the model's quantizers multiply by 1 / scale, QuantizeLinear divides: values midway "
            "between two steps may round differently; train with arithmetic='divide'",
            lifted.reciprocal,
        )
    inserted = InsertQdq(lifted.plan, lifted.encodings).run(lifted.model).model
    return drop_copies(inserted).proto

"""Export of torch's fake-quantize operations as FakeQuantize nodes.

torch.fake_quantize_per_tensor_affine and _per_channel_affine become these operations in an exported program.
The modules of torch.ao branch on buffers to decide whether to observe, which an export cannot follow: during
an export they only round. All of them multiply by 1 / scale.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import onnx
import onnxscript
import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.numerics.float_types import FLOATS
from onnxfq.passes.custom_domain import VERSION
from onnxfq.passes.recognize_fake_quantize import qtype_of_limits
from onnxfq.torch.functions import fake_quantize

_FLOATS = [info.onnx_name for info in FLOATS.values()]
_PARAMETER = onnx.defs.OpSchema.FormalParameter
_SCHEMA = onnx.defs.OpSchema(
    "FakeQuantize",
    ONNXFQ_DOMAIN,
    VERSION,
    inputs=[_PARAMETER("x", "T"), _PARAMETER("scale", "S"), _PARAMETER("zero_point", "S")],
    outputs=[_PARAMETER("y", "T")],
    type_constraints=[("T", _FLOATS, ""), ("S", _FLOATS, "")],
    attributes=[
        onnx.defs.OpSchema.Attribute("qtype", onnx.defs.OpSchema.AttrType.STRING),
        onnx.defs.OpSchema.Attribute("arithmetic", onnx.defs.OpSchema.AttrType.STRING, required=False),
        onnx.defs.OpSchema.Attribute("axis", onnx.defs.OpSchema.AttrType.INT, required=False),
    ],
)
_FAKE_QUANTIZE = onnxscript.values.Op(
    onnxscript.values.Opset(ONNXFQ_DOMAIN, VERSION), "FakeQuantize", _SCHEMA
)


def _node(x: Any, scale: Any, zero_point: Any, low: int, high: int, axis: int | None = None) -> Any:
    qtype = qtype_of_limits(low, high)
    if qtype is None:
        raise SpecError(
            f"quant_min {low} and quant_max {high} fit no integer type of up to 16 bits; "
            "use limits such as -128 and 127"
        )
    given = {"qtype": str(qtype), "arithmetic": "reciprocal"} | ({} if axis is None else {"axis": axis})
    return _FAKE_QUANTIZE(x, scale, zero_point, **given)


def _cast(value: Any) -> Any:
    return onnxscript.opset18.Cast(value, to=1)


def _constant(value: float) -> Any:
    return onnxscript.opset18.Constant(value_float=float(value))


def translate_per_tensor(self: Any, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    """Translate the per-tensor operation with numbers as parameters."""
    return _node(self, _constant(scale), _constant(zero_point), quant_min, quant_max)


def translate_tensor_params(self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
    """Translate the per-tensor operation with tensors as parameters, as used by the modules of torch.ao."""
    return _node(self, _cast(scale), _cast(zero_point), quant_min, quant_max)


def translate_per_channel(
    self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> Any:
    """Translate the operation with a scale for each channel."""
    return _node(self, _cast(scale), _cast(zero_point), quant_min, quant_max, axis)


def _with_mask(x: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@contextlib.contextmanager
def shapes_known() -> Iterator[None]:
    """Register shapes for torch.export of operations for which torch 2.13 has no shape rule."""
    with torch.library._scoped_library("aten", "IMPL", "Meta") as library:
        for name in _WITH_MASK:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
                library.impl(name, _with_mask)
        yield


_WITH_MASK = (
    "fake_quantize_per_tensor_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "fake_quantize_per_channel_affine_cachemask",
)


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
    qtype = qtype_of_limits(low, high)
    if qtype is None:
        raise SpecError(
            f"quant_min {low} and quant_max {high} fit no integer type of up to 16 bits; "
            "use limits such as -128 and 127"
        )
    return partial(
        fake_quantize,
        scale=module.scale.detach().clone(),
        zero_point=module.zero_point.detach().clone(),
        qtype=qtype,
        axis=module.ch_axis if module.is_per_channel else None,
        arithmetic="reciprocal",
    )


_ATEN = torch.ops.aten

TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    _ATEN.fake_quantize_per_tensor_affine.default: translate_per_tensor,
    _ATEN.fake_quantize_per_tensor_affine.tensor_qparams: translate_tensor_params,
    _ATEN.fake_quantize_per_channel_affine.default: translate_per_channel,
}
"""For torch.onnx.export's custom_translation_table."""

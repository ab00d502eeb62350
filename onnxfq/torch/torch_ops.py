"""torch's own fake quantization in a graph that is exported: each operation becomes a FakeQuantize node.

They are what torch.fake_quantize_per_tensor_affine, _per_channel_affine and the FakeQuantize modules of torch.ao
come to in an exported program. All multiply by 1 / scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxscript
import torch

from onnxfq.errors import SpecError
from onnxfq.passes.recognize_rounding import qtype_of_limits

_OPS = onnxscript.values.Opset("onnxfq", 1)


def _node(x: Any, scale: Any, zero_point: Any, low: int, high: int, axis: int | None = None) -> Any:
    qtype = qtype_of_limits(low, high)
    if qtype is None:
        raise SpecError(f"quant_min {low} and quant_max {high} are the limits of no integer type of up to 16 bits")
    given = {"qtype": str(qtype), "arithmetic": "reciprocal"} | ({} if axis is None else {"axis": axis})
    return _OPS.FakeQuantize(x, scale, zero_point, **given)


def _cast(value: Any) -> Any:
    return onnxscript.opset18.Cast(value, to=1)


def _constant(value: float) -> Any:
    return onnxscript.opset18.Constant(value_float=float(value))


def per_tensor(self: Any, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    """Translate the form whose parameters are numbers."""
    return _node(self, _constant(scale), _constant(zero_point), quant_min, quant_max)


def per_tensor_of_tensors(self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
    """Translate the form whose parameters are tensors, as the modules of torch.ao have it."""
    return _node(self, _cast(scale), _cast(zero_point), quant_min, quant_max)


def per_channel(self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int) -> Any:
    """Translate the form with a scale for each channel."""
    return _node(self, _cast(scale), _cast(zero_point), quant_min, quant_max, axis)


def observed(
    self: Any,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Any,
    running_max: Any,
    scale: Any,
    zero_point: Any,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    """Translate the operation that observes as well; what it has observed is in scale and zero point."""
    axis = ch_axis if per_row_fake_quant else None
    return _node(self, _cast(scale), _cast(zero_point), quant_min, quant_max, axis)


_ATEN = torch.ops.aten

TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    _ATEN.fake_quantize_per_tensor_affine.default: per_tensor,
    _ATEN.fake_quantize_per_tensor_affine.tensor_qparams: per_tensor_of_tensors,
    _ATEN.fake_quantize_per_channel_affine.default: per_channel,
    _ATEN.fused_moving_avg_obs_fake_quant.default: observed,
}
"""For torch.onnx.export's custom_translation_table."""

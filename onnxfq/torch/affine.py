"""torch's document: `fake_quantize_per_channel_affine` and `fake_quantize_per_tensor_affine`.

Values and gradients are torch's, bit for bit; docs/migrating.md lists the exceptions. During an export, calls
of torch's own two functions become calls of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from onnxfq.errors import SpecError
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.torch.arithmetic import RoundingGrid
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.qat_gradients import check_and_quantize

_ZERO_TYPES = (torch.int32, torch.float32, torch.float16)


def fake_quantize_per_channel_affine(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """Return `input` rounded to the grid of each channel, as torch's function of this name.

    Args:
        input: float tensor.
        scale: [input.shape[axis]], float32; positive.
        zero_point: of the same shape, int32 within the limits, or a float type.
        axis: counted from the front.
        quant_min: least integer of the grid; it may be above 0.
        quant_max: largest integer; up to 64 bits.

    Raises SpecError where torch raises RuntimeError.
    """
    if is_exporting():  # the call has run before, and a trace must not compare shapes
        return _call(input, scale, zero_point, axis, quant_min, quant_max)
    if not 0 <= axis < input.ndim:
        raise SpecError(f"axis must be in [0, {input.ndim - 1}] for rank {input.ndim}, got {axis}")
    if scale.ndim != 1 or zero_point.shape != scale.shape or len(scale) != input.shape[axis]:
        raise SpecError(
            f"scale and zero_point must have shape [{input.shape[axis]}], got "
            f"{list(scale.shape)} and {list(zero_point.shape)}"
        )
    if zero_point.dtype not in _ZERO_TYPES:
        raise SpecError(f"zero_point must be int32, float32 or float16, got {zero_point.dtype}; use int()")
    return _call(input, scale, zero_point, axis, quant_min, quant_max)


def fake_quantize_per_tensor_affine(
    input: Tensor, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """Return `input` rounded to one grid, as torch's function of this name; see the one per channel."""
    scales = scale if isinstance(scale, Tensor) else torch.tensor(scale)
    zeros = zero_point if isinstance(zero_point, Tensor) else torch.tensor(zero_point)
    if scales.numel() != 1 or zeros.numel() != 1:
        raise SpecError(f"scale and zero_point must be one value each, got {scales.numel()}, {zeros.numel()}")
    scales, zeros = scales.float().reshape(()), zeros.to(input.device).reshape(())
    return _call(input, scales, zeros, None, quant_min, quant_max)


def _call(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, low: int, high: int) -> Tensor:
    qtype, fixed, zeros = qtype_of_integers(low, high), scale.detach(), zero_point.detach()
    grid = RoundingGrid(qtype, arithmetic="reciprocal", granularity=Granularity(axis))
    return check_and_quantize(x, fixed, zeros, grid, zeros.is_floating_point())


_OURS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.fake_quantize_per_channel_affine: fake_quantize_per_channel_affine,
    torch.fake_quantize_per_tensor_affine: fake_quantize_per_tensor_affine,
}


class Redirect(TorchFunctionMode):
    """Calls of torch's two functions become calls of the functions here.

    Attributes:
        was_needed: whether there was such a call.
    """

    was_needed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ours in place of torch's."""
        own = _OURS.get(func)
        self.was_needed |= own is not None
        return (own or func)(*args, **(kwargs or {}))

"""AIMET's document: quantize, dequantize and quantize_dequantize as functions, with gradients.

With q = clamp(round(x / scale - shift) - offset, qmin, qmax) and y = (q + offset + shift) * scale, and
"inside" for elements that the clamp leaves:

| gradient of y by | inside             | outside                                                |
|------------------|--------------------|--------------------------------------------------------|
| x                | 1                  | 0                                                      |
| scale            | round(x/s) - x/s   | round(x/s), limited to qmin + offset and qmax + offset |
| offset           | 0                  | scale                                                  |

aimet-torch 2.42 has the same values and gradients, bit for bit. If scale and offset need no gradient, it
calls torch's own fake quantization, which multiplies by 1 / scale; otherwise it divides. These functions do
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.torch import kernels
from onnxfq.torch.arguments import checked
from onnxfq.torch.arithmetic import RoundingGrid
from onnxfq.torch.compat.aimet.grid import check_shift, form, read_call
from onnxfq.torch.rounding import RoundingRule, Saved

_OTHERS = {"block_size": None, "zero_point_shift": None}
_WIDTHS = (form(name, signed=False, **_OTHERS) for name in ("bitwidth", "num_steps"))
_FORMS = (form("qmin", "qmax", **_OTHERS), *_WIDTHS)
Blocks = Sequence[int] | None
_PRECISION = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


@checked
def quantize(tensor: Tensor, scale: Tensor, offset: Tensor, *args: Any, **keywords: Any) -> Tensor:
    """Return the integers clamp(round(tensor / scale) - offset, qmin, qmax), as floats of tensor's type.

    Args:
        tensor: float tensor.
        scale: broadcasts to the tensor, or has one value for each block.
        offset: minus the zero point, of the same shape.
        args: (bitwidth, signed=False, block_size=None), (qmin, qmax, block_size=None), or by name num_steps
            and signed. `block_size` has the elements of a block along each axis of scale, -1 for what fits.
        keywords: the same by name.

    Raises SpecError for other arguments, shapes that do not fit and integers that tensor's type lacks.
    """
    qmin, qmax, others = read_call("quantize", _FORMS, args, keywords, 0)
    if others["zero_point_shift"]:
        raise SpecError("quantize has no zero_point_shift, found 0.5; use quantize_dequantize")
    if not _holds(tensor.dtype, qmin, qmax):
        raise SpecError(f"{tensor.dtype} does not hold the integers {qmin} to {qmax}; use a wider type")
    work = _work_type(tensor.dtype, qmin, qmax)
    return _by_blocks(_Integers(qmin, qmax), work, others["block_size"], tensor, scale, offset)


@checked
def dequantize(
    tensor: Tensor, scale: Tensor, offset: Tensor, block_size: Sequence[int] | None = None
) -> Tensor:
    """Return (tensor + offset) * scale in tensor's type; with the arguments of `quantize`."""
    return _by_blocks(lambda x, s, o: (x + o) * s, tensor.dtype, block_size, tensor, scale, offset)


@checked
def quantize_dequantize(tensor: Tensor, scale: Tensor, offset: Tensor, *args: Any, **keywords: Any) -> Tensor:
    """Return tensor rounded to the grid; with the arguments of `quantize`.

    `zero_point_shift`, the last one, puts 0 between two steps with 0.5. A type that is too narrow for the
    grid is computed in float32 or float64. Raises SpecError as `quantize` does.
    """
    qmin, qmax, others = read_call("quantize_dequantize", _FORMS, args, keywords, 0)
    block_size, shift = others["block_size"], check_shift("quantize_dequantize", others["zero_point_shift"])
    learns = torch.is_grad_enabled() and (scale.requires_grad or offset.requires_grad)
    if not (block_size or shift or learns or torch.compiler.is_compiling()):
        check_shapes(tensor.shape, scale.shape, block_size)
        fast = _by_torch(tensor, scale, offset, qmin, qmax)
        if fast is not None:
            return fast
    work = _work_type(tensor.dtype, qmin, qmax)
    if not _holds(work, qmin, qmax):
        raise SpecError(f"{work} does not hold the integers {qmin} to {qmax}; use a smaller grid")
    return _by_blocks(_Values(qmin, qmax, shift), work, block_size, tensor, scale, offset)


def interleaved(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return first[0], second[0], first[1], second[1], ..."""
    return tuple(n for pair in zip(first, second, strict=True) for n in pair)


def split_blocks(x: Tensor, shape: Sequence[int], block_size: Blocks) -> tuple[Tensor, tuple[int, ...]]:
    """Return x and `shape` so that the shape broadcasts to x. Raises SpecError if they do not fit."""
    if not torch.compiler.is_compiling():
        check_shapes(x.shape, shape, block_size)
    if not block_size:
        return x, tuple(shape)
    sizes = [n // parts for n, parts in zip(x.shape[x.ndim - len(shape) :], shape, strict=True)]
    return x.reshape(-1, *interleaved(shape, sizes)), interleaved(shape, (1,) * len(shape))


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Tell whether `shape` broadcasts to exactly `target`."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(n in (1, m) for n, m in pairs)


def check_shapes(tensor: Sequence[int], scale: Sequence[int], block_size: Blocks) -> None:
    """Raise SpecError unless scales broadcast to the tensor, or blocks of `block_size` make it up.

    Args:
        tensor: shape of the tensor.
        scale: shape of the scales.
        block_size: elements of a block along each axis of scale, -1 for what fits; None without blocks.
    """
    shape, param = list(tensor), list(scale)
    if block_size is None:
        if not fits(param, shape):
            raise SpecError(f"scales {param} do not broadcast to an input {shape}; give another shape")
    elif len(block_size) != len(param) or len(param) > len(shape):
        raise SpecError(
            f"block_size {list(block_size)} and scales {param} need one rank, input {shape} that or more"
        )
    else:
        for n, parts, size in zip(shape[len(shape) - len(param) :], param, block_size, strict=True):
            if n % parts if size == -1 else size * parts != n:
                raise SpecError(f"{parts} blocks of {size} do not make up {n} of {shape}; give others")


def _by_blocks(rule: Callable[..., Tensor], work: torch.dtype, blocks: Blocks, *tensors: Tensor) -> Tensor:
    """Return what `rule` makes of a tensor, and of scale and offset of type `work`, in broadcasting shapes.

    It has the type and shape of the tensor.
    """
    tensor, scale, offset = tensors
    scale, offset = scale.to(work), offset.to(work)
    seen, param = split_blocks(tensor, scale.shape, blocks)
    if not blocks:
        return rule(tensor, scale, offset).to(tensor.dtype)
    return rule(seen, scale.view(param), offset.view(param)).to(tensor.dtype).view(tensor.shape)


def _is_exact(dtype: torch.dtype, value: int) -> bool:
    if dtype not in _PRECISION:
        raise SpecError(f"an input must be float16, bfloat16, float32 or float64, found {dtype}; convert it")
    odd = abs(value) >> (value & -value).bit_length() - 1 if value else 0
    return odd.bit_length() <= _PRECISION[dtype] and abs(value) <= torch.finfo(dtype).max


def _holds(dtype: torch.dtype, qmin: int, qmax: int) -> bool:
    """Tell whether a type has the ends of the grid and their neighbours exactly."""
    return all(_is_exact(dtype, value) for value in (qmin, qmin + 1, qmax - 1, qmax))


def _work_type(dtype: torch.dtype, qmin: int, qmax: int) -> torch.dtype:
    """Return the first of dtype, float32 and float64 that holds the grid with two bits to spare."""
    for work in (dtype, torch.float32):
        if _holds(work, qmin, qmax) and torch.finfo(work).eps * (qmax - qmin) <= 0.25:
            return work
    return torch.float64


def _by_torch(x: Tensor, scale: Tensor, offset: Tensor, qmin: int, qmax: int) -> Tensor | None:
    """Return torch's fake quantization per tensor or per channel; None if scales have several axes.

    torch refuses some widths, and zero points outside the grid; the general form takes them.
    """
    if max(-qmin, qmax) >> 63:  # torch takes 64-bit limits
        return None
    scales, zeros = scale.float().flatten(), -offset.to(torch.int32).flatten()
    axes = [axis - scale.ndim for axis, n in enumerate(scale.shape) if n != 1]
    try:
        if len(scales) == len(zeros) == 1:
            return torch.fake_quantize_per_tensor_affine(x, scales[0], zeros[0], qmin, qmax).to(x.dtype)
        if len(axes) == 1 and scale.shape == offset.shape:
            axis = x.ndim + axes[0]
            return torch.fake_quantize_per_channel_affine(x, scales, zeros, axis, qmin, qmax).to(x.dtype)
    except RuntimeError:
        return None
    return None


@dataclass(frozen=True)
class _Integers(RoundingRule):
    """The integers; their gradient passes inside the grid."""

    qmin: int
    qmax: int
    shift: float = 0.0
    keeps = True

    def round(self, x: Tensor, scale: Tensor, offset: Tensor, mask: bool) -> tuple[Tensor, Tensor | None]:
        """Return the integers and, if `mask`, what the clamp leaves."""
        steps = x.to(scale.dtype) / scale
        steps = torch.round(steps - self.shift if self.shift else steps) - offset
        inside = (steps >= self.qmin) & (steps <= self.qmax) if mask else None
        return steps.clamp(self.qmin, self.qmax), inside

    def by_x(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient inside, by a step."""
        return gradient * saved.inside / saved.first

    def by_first(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of the scale."""
        return -self.by_x(gradient, saved) * (saved.x / saved.first)

    def by_second(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of the offset."""
        return -gradient * saved.inside


@dataclass(frozen=True)
class _Values(_Integers):
    """Values of the grid, by the table of this module."""

    keeps = False

    def round(self, x: Tensor, scale: Tensor, offset: Tensor, mask: bool) -> tuple[Tensor, Tensor | None]:
        """Return the values and, if `mask`, what the clamp leaves; the CPU kernel has the same bits."""
        wide = x.dtype == scale.dtype == torch.float32
        if wide and not self.shift and kernels.takes(x) and not (offset % 1).any():
            grid = RoundingGrid(qtype_of_integers(self.qmin, self.qmax))
            shape = (1,) * (x.ndim - scale.ndim) + tuple(scale.shape)
            done = kernels.fake_quantize(x, scale.reshape(shape), -offset, grid, mask)
            if done is not None:
                return done
        steps, inside = super().round(x, scale, offset, mask)
        return (steps + (offset + self.shift if self.shift else offset)) * scale, inside

    by_x = RoundingRule.by_x

    def by_first(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of the scale."""
        x, scale, offset, inside = saved
        steps = x.to(scale.dtype) / scale - self.shift
        rounded = torch.round(steps)
        limited = rounded.clamp(offset + self.qmin, offset + self.qmax)
        return gradient * torch.where(inside, rounded - steps, limited)

    def by_second(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of the offset."""
        return torch.where(saved.inside, 0, gradient * saved.first)

"""Affine quantization in torch operations, bit-identical to `numerics.affine` on any device, compiled or not.

It computes in float32, or in float64 if x is float64 (for gradient checks). Nothing here has a gradient;
`qat_gradients.py` adds the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.affine import ARITHMETICS, check_names
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.rounding import ROUNDINGS, round_to_float_grid


@dataclass(frozen=True)
class RoundingGrid:
    """Rounding target and mode, with the names of `numerics.affine.fake_quantize`, and who shares a scale.

    Attributes:
        qtype: number type.
        rounding: a key of `numerics.rounding.ROUNDINGS`.
        arithmetic: a key of `numerics.affine.ARITHMETICS`.
        saturate: False lets gradients pass outside the grid, and a float type overflow to infinity or NaN.
        packed_mask: whether the mask for the gradient has one bit an element.
        granularity: elements that share a scale.

    Raises SpecError with the nearest names for an unknown one.
    """

    qtype: QType
    rounding: str = "half_even"
    arithmetic: str = "divide"
    saturate: bool = True
    packed_mask: bool = False
    granularity: Granularity = PER_TENSOR

    def __post_init__(self) -> None:
        check_names(rounding=self.rounding, arithmetic=self.arithmetic)


@dataclass(frozen=True)
class View:
    """Shapes in which x and its parameters broadcast against each other; elements are copied only if needed.

    Attributes:
        x: the shape in which x is seen; None if unchanged.
        repeats: for each dimension, how often each entry of a parameter is repeated and the size to which it
            is cut; empty if all blocks divide x evenly.
        params: the shape in which parameters are seen afterwards.
    """

    x: tuple[int, ...] | None
    repeats: tuple[tuple[int, int], ...]
    params: tuple[int, ...]

    @staticmethod
    def from_shapes(shape: Sequence[int], param: Sequence[int], granularity: Granularity) -> View:
        """Return the view of x of `shape` with parameters of shape `param`. Raises SpecError for a misfit."""
        layout = Layout.match(granularity, shape, param)
        if layout.granularity == PER_TENSOR:
            return View(None, (), ())
        if len(param) == 1 and len(shape) != 1:
            return View(None, (), layout.counts)
        seen: tuple[int, ...] = ()
        params: tuple[int, ...] = ()
        repeats: tuple[tuple[int, int], ...] = ()
        for n, p, block in zip(shape, param, layout.block_sizes, strict=True):
            split: Any = ((p, block), (p, 1), (1, p)) if n % block == 0 else ((n,), (n,), (block, n))
            part = ((n,), (p,), (1, n)) if p == 1 or block == 1 else split
            seen, params, repeats = seen + part[0], params + part[1], (*repeats, part[2])
        repeated = any(times > 1 for times, _ in repeats)
        return View(seen if len(seen) != len(shape) else None, repeats if repeated else (), params)

    def see(self, x: Tensor) -> Tensor:
        """Return x in the shape of this view."""
        return x if self.x is None else x.reshape(self.x)

    def see_param(self, param: Tensor) -> Tensor:
        """Return a parameter so that it broadcasts against `see(x)`; differentiable."""
        for d, (times, size) in enumerate(self.repeats):
            if times > 1:
                param = param.repeat_interleave(times, dim=d).narrow(d, 0, size)
        return param.reshape(self.params)


def granularity_of_shape(shape: Sequence[int], tensor: Sequence[int]) -> Granularity:
    """Return the granularity by which scales of `shape` apply to a tensor.

    Shapes are aligned at the last axis, as in broadcasting; a size that divides the tensor's makes blocks.
    Raises SpecError with both shapes if they do not fit.
    """
    full = (1,) * (len(tensor) - len(shape)) + tuple(shape)[max(len(shape) - len(tensor), 0) :]
    extra = tuple(shape)[: max(len(shape) - len(tensor), 0)]
    if any(n != 1 for n in extra) or any(p < 1 or n % p for p, n in zip(full, tensor, strict=True)):
        raise SpecError(f"scales {list(shape)} neither broadcast to nor divide {list(tensor)}; reshape them")
    blocks = tuple(-1 if p == 1 else n // p for p, n in zip(full, tensor, strict=True))
    divided = [d for d, block in enumerate(blocks) if block != -1]
    if not divided:
        return PER_TENSOR
    return Granularity(divided[0]) if [blocks[d] for d in divided] == [1] else Granularity(block_shape=blocks)


def pack_mask(mask: Tensor) -> Tensor:
    """Return a bool mask as bits, eight elements a byte."""
    flat = mask.flatten().to(torch.uint8)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(1, dtype=torch.uint8)


def unpack_mask(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the bool mask of `shape` from its bits."""
    each = (bits[:, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
    return each.flatten()[: math.prod(shape)].bool().reshape(tuple(shape))


def round_to_grid(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid
) -> tuple[Tensor, Tensor]:
    """Return (steps, mask): x in steps of scale, rounded to the grid, and whether each element was inside it.

    Args:
        x: values; they are computed in the type of the scale.
        scale: broadcasts against x.
        zero_point: likewise, in the scale's type; None for 0.
        grid: the grid.

    The steps count from zero_point: steps times scale is the value. The mask is bool: true where the rounded
    x is a number of the grid, false for NaN.
    """
    qtype, v = grid.qtype, ARITHMETICS[grid.arithmetic](x.to(scale.dtype), scale)
    if qtype.is_float:
        return round_to_float_grid(v, qtype, grid.rounding, grid.saturate, torch), v.abs() <= qtype.qmax
    if zero_point is None:
        rounded = ROUNDINGS[grid.rounding](v, torch)
        steps = rounded.clamp(qtype.qmin, qtype.qmax)
        return steps + 0.0, steps == rounded
    # A fraction is added before rounding. Whole zero points shift the limits instead: no second rounding.
    whole = torch.floor(zero_point)
    offset = torch.where((whole != zero_point).any(), zero_point, torch.zeros_like(zero_point))
    low, high = qtype.qmin - (zero_point - offset), qtype.qmax - (zero_point - offset)
    rounded = ROUNDINGS[grid.rounding](v + offset, torch)
    steps = torch.minimum(torch.maximum(rounded, low), high)
    return (steps + 0.0) - offset, steps == rounded

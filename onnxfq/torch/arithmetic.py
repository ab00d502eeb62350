"""The arithmetic of `numerics.affine` in torch operations: the same bits, on any device, compiled or not.

All of it is float32, float64 for x of float64 (which only gradient checks want). Nothing here has a gradient;
`functions.py` gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onnxfq.errors import SpecError, nearest
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QType, qtype_by_name


def _half_away(v: Tensor) -> Tensor:
    whole = torch.trunc(v)
    return whole + torch.where((v - whole).abs() >= 0.5, torch.copysign(torch.ones_like(v), v), 0)


def _half_down(v: Tensor) -> Tensor:
    whole = torch.trunc(v)
    return whole + torch.where((v - whole).abs() > 0.5, torch.copysign(torch.ones_like(v), v), 0)


# The names and their meaning are those of `onnxfq.numerics.rounding`.
ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "half_even": torch.round,
    "half_up": lambda v: torch.floor(v + 0.5),
    "half_away": _half_away,
    "half_down": _half_down,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "truncate": torch.trunc,
}

ARITHMETICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "divide": lambda x, scale: x / scale,
    "reciprocal": lambda x, scale: x * (1 / scale),
}

# Bits of a float: shift and bias of its exponent, and the integer of its width.
_EXPONENTS = {torch.float32: (23, 127, torch.int32), torch.float64: (52, 1023, torch.int64)}
_BEYOND = {"ieee": float("inf"), "fn": float("nan"), "fnuz": float("nan")}


@dataclass(frozen=True)
class Grid:
    """Where values are rounded to, and how: `numerics.fake_quantize`'s qtype, rounding, arithmetic, saturate.

    saturate: False lets gradients pass outside the grid too, and a float type overflow to infinity or NaN.
    """

    qtype: QType
    rounding: str = "half_even"
    arithmetic: str = "divide"
    saturate: bool = True

    @staticmethod
    def of(qtype: QType | str, rounding: str, arithmetic: str, saturate: bool) -> Grid:
        """Return the grid of these names. Raises SpecError with the nearest ones for an unknown name."""
        if rounding not in ROUNDINGS:
            raise SpecError(f"unknown rounding {rounding!r}{nearest(rounding, ROUNDINGS)}")
        if arithmetic not in ARITHMETICS:
            raise SpecError(f"unknown arithmetic {arithmetic!r}{nearest(arithmetic, ARITHMETICS)}")
        found = qtype_by_name(qtype) if isinstance(qtype, str) else qtype
        return Grid(found, rounding, arithmetic, saturate)


@dataclass(frozen=True)
class View:
    """x and its parameters as shapes that broadcast against each other; no element is copied if it need not.

    x: the shape x is seen in; None for its own. repeats: how often each entry of a parameter is repeated
    along each dimension and the size it is cut to, where blocks do not divide x evenly. params: the shape
    parameters are seen in afterwards.
    """

    x: tuple[int, ...] | None
    repeats: tuple[tuple[int, int], ...]
    params: tuple[int, ...]

    @staticmethod
    def of(shape: Sequence[int], param: Sequence[int], granularity: Granularity) -> View:
        """Return the view of x of `shape` with parameters of shape `param`. Raises SpecError for a misfit."""
        layout = Layout.match(granularity, shape, param)
        if layout.granularity == PER_TENSOR:
            return View(None, (), ())
        if len(param) == 1 and len(shape) != 1:
            return View(None, (), layout.counts)
        seen, params, repeats = [], [], []
        for n, p, block in zip(shape, param, layout.block_sizes, strict=True):
            if p == 1 or block == 1:
                seen.append([n])
                params.append([p])
                repeats.append((1, n))
            elif n % block == 0:
                seen.append([p, block])
                params.append([p, 1])
                repeats.append((1, p))
            else:
                seen.append([n])
                params.append([n])
                repeats.append((block, n))
        flat = tuple(n for part in seen for n in part)
        return View(
            flat if len(flat) != len(shape) else None,
            tuple(repeats) if any(r > 1 for r, _ in repeats) else (),
            tuple(n for part in params for n in part),
        )

    def see(self, x: Tensor) -> Tensor:
        """Return x in the shape of this view."""
        return x if self.x is None else x.reshape(self.x)

    def see_param(self, param: Tensor) -> Tensor:
        """Return a parameter so that it broadcasts against `see(x)`; differentiable."""
        for d, (times, size) in enumerate(self.repeats):
            if times > 1:
                param = param.repeat_interleave(times, dim=d).narrow(d, 0, size)
        return param.reshape(self.params)


def in_steps(x: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """Return x measured in steps of `scale`, not rounded."""
    return ARITHMETICS[grid.arithmetic](x, scale)


def round_to_grid(v: Tensor, zero_point: Tensor | None, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return v, in steps, rounded to the grid and how far it was inside: (steps, mask of bool).

    zero_point: None for 0; in v's type. The steps are those from zero_point: times scale they are the value.
    The mask is true where the rounded v is a number of the grid, false for NaN.
    """
    qtype = grid.qtype
    if qtype.is_float:
        return _round_to_floats(v, grid)
    if zero_point is None:
        rounded = ROUNDINGS[grid.rounding](v)
        steps = rounded.clamp(qtype.qmin, qtype.qmax)
        return steps + 0.0, steps == rounded
    # A fraction is added before rounding; whole steps limit instead: no sum, no second rounding.
    whole = torch.floor(zero_point)
    offset = torch.where((whole != zero_point).any(), zero_point, torch.zeros_like(zero_point))
    low, high = qtype.qmin - (zero_point - offset), qtype.qmax - (zero_point - offset)
    rounded = ROUNDINGS[grid.rounding](v + offset)
    steps = torch.minimum(torch.maximum(rounded, low), high)
    return (steps + 0.0) - offset, steps == rounded


def _round_to_floats(v: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return v rounded to the numbers of a small float, and where it was not beyond the largest.

    The formula is `float_grid.round_to_float_grid`'s. Powers of two are put together from their bits: exact,
    which a pow function need not be.
    """
    layout = grid.qtype.layout
    assert layout is not None
    qmax = grid.qtype.qmax
    can_overflow = not grid.saturate and layout.special in _BEYOND
    limit = 2 * qmax if can_overflow else qmax
    limited = v.clamp(-limit, limit)
    shift, bias, integer = _EXPONENTS[v.dtype]
    exponent = ((limited.view(integer) >> shift) & (2 * bias + 1)) - bias
    exponent = exponent.clamp(min=1 - layout.bias) - layout.mantissa_bits
    step = ((exponent + bias) << shift).view(v.dtype)
    inverse = ((bias - exponent) << shift).view(v.dtype)
    rounded = ROUNDINGS[grid.rounding](limited * inverse) * step
    result = torch.copysign(rounded, v)
    inside = v.abs() <= qmax
    if can_overflow:
        beyond = torch.copysign(torch.full_like(v, _BEYOND[layout.special]), v)
        result = torch.where(rounded.abs() > qmax, beyond, result)
    return (result + 0.0 if layout.special == "fnuz" else result), inside

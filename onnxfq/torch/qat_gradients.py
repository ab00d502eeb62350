"""Fake-quantization functions with gradients: straight-through, LSQ, learned ranges, PACT.

Here v = x / scale + zero_point, y is the result, and "inside" means that the rounded v is on the grid:

| gradient of y by | inside          | outside                                | source    |
|------------------|-----------------|----------------------------------------|-----------|
| x                | 1               | 0; 1 without `saturate`                | STE       |
| scale            | (y - x) / scale | qmin - zero_point or qmax - zero_point | LSQ, LSQ+ |
| zero_point       | 0               | -scale                                 | LSQ+      |

These are also the gradients of torch's `_fake_quantize_learnable_per_tensor_affine`. Esser et al., "Learned
Step Size Quantization", ICLR 2020; Bhalgat et al., "LSQ+", CVPR workshops 2020; Choi et al., "PACT", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.affine import ARITHMETICS, as_qtype, check_params
from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qparams import ParamRules, check_symmetry, params_of_range
from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import kernels
from onnxfq.torch.arithmetic import RoundingGrid, View, pack_mask, round_to_grid, unpack_mask
from onnxfq.torch.onnx_node import has_node, is_exporting, onnx_node
from onnxfq.torch.rounding import RoundingRule, Saved

_TYPES = (*(getattr(torch, name) for name in FLOATS), torch.float64)


def fake_quantize(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float = 0,
    *,
    qtype: QType | str,
    axis: int | None = None,
    block_size: int | None = None,
    block_shape: Sequence[int] | None = None,
    rounding: str = "half_even",
    arithmetic: str = "divide",
    saturate: bool = True,
) -> Tensor:
    """Return x rounded to the grid of `qtype`, of x's type and shape, with the gradients of this module.

    Parameters and values are the same as in `onnxfq.fake_quantize`, bit for bit.

    Args:
        x: float32, float16, bfloat16, or float64, which is computed in float64.
        scale: gets a gradient if it requires one.
        zero_point: gets a gradient if it requires one.
        qtype: number type of the grid.
        axis: the axis along which scales differ.
        block_size: elements along `axis` that share a scale.
        block_shape: shape of the blocks that share a scale.
        rounding: a key of `numerics.rounding.ROUNDINGS`.
        arithmetic: with "reciprocal", values and gradients equal torch.fake_quantize_per_tensor_affine and
            _per_channel_affine, except that NaN stays NaN.
        saturate: False lets the gradient of x pass outside the grid, and a float type overflow to its
            infinity or NaN.

    Raises SpecError as `onnxfq.fake_quantize` does. The values of scale and zero_point are checked on the CPU
    only, and not while torch compiles, exports, transforms or watches.
    """
    shared = Granularity.of(axis, block_size, block_shape)
    grid = RoundingGrid(as_qtype(qtype), rounding, arithmetic, saturate, granularity=shared)
    return check_and_quantize(x, scale, zero_point, grid)


def check_and_quantize(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | float, grid: RoundingGrid, free_zero: bool = False
) -> Tensor:
    """Fake-quantize x; `free_zero` lets the zero point lie off the grid, as torch's float zero points."""
    if x.dtype not in _TYPES:
        raise SpecError(f"x must be float32, float16, bfloat16 or float64, got {x.dtype}; convert it")
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    scales = (scale if isinstance(scale, Tensor) else torch.tensor(scale)).to(x.device, work)
    zeros = zero_point.to(work) if isinstance(zero_point, Tensor) else None
    if zeros is None and zero_point != 0:
        zeros = torch.tensor(float(zero_point), dtype=work, device=x.device)
    if not (kernels.is_watched() or is_exporting()) and scales.device.type == "cpu":
        check_values(scales, None if free_zero else zeros, grid)
    return quantize_to(x, scales, zeros, grid)


def quantize_to(x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid) -> Tensor:
    """Fake-quantize x with checked parameters that already have the computation type."""
    if is_exporting():
        return (onnx_node if has_node(grid) else _write_out)(x, scale, zero_point, grid)
    view = View.from_shapes(x.shape, scale.shape, grid.granularity)
    seen, scales = view.see(x), view.see_param(scale)
    zeros = None if grid.qtype.is_float else zero_point  # that of a float grid is 0
    if zeros is not None:
        zeros = zeros.reshape(()) if zeros.numel() == 1 else view.see_param(zeros)
    y = _GridRounding(grid)(seen, scales, zeros)
    return y if view.x is None else y.reshape(x.shape)


def quantize_integers(x: Tensor, scale: Tensor, zero_point: Tensor, grid: RoundingGrid) -> Tensor:
    """Return the integers of x: the steps from the zero point, plus the zero point.

    Raises SpecError for a float grid, whose codes torch's integers do not hold.
    """
    if grid.qtype.is_float:
        raise SpecError(f"{grid.qtype} has no integers; use an integer qtype")
    view = View.from_shapes(x.shape, scale.shape, grid.granularity)
    zeros = view.see_param(zero_point)
    steps, _ = round_to_grid(view.see(x), view.see_param(scale), zeros, grid)
    integers = torch.nan_to_num(steps) + zeros
    return integers.reshape(x.shape).to(getattr(torch, str(grid.qtype.storage_dtype)))


def _write_out(x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid) -> Tensor:
    """Return the rounded x without reading a shape, which an exporter would take as a constant."""
    if grid.granularity.is_blocked:
        raise SpecError(f"blocks of {grid.qtype} cannot be exported; use a type of up to 16 bits")
    axis = grid.granularity.axis
    shape = [] if axis is None else [-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]
    scales = scale.reshape(shape)
    zeros = None if zero_point is None else zero_point.reshape(shape if zero_point.ndim else [])
    steps, _ = round_to_grid(x, scales, zeros, grid)
    return (steps * scales).to(x.dtype)


def check_values(
    scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid, spec: QuantSpec | None = None
) -> None:
    """Raise SpecError unless scales are finite and positive and zero points are on the grid.

    With `spec` zero points must be integers, and 0 if it is symmetric.
    """
    scales, zeros = (0 if one is None else one.detach().cpu().double().numpy() for one in (scale, zero_point))
    check_params(scales, zeros, grid.qtype, grid.rounding, grid.arithmetic, fractions=spec is None)
    if spec is not None and spec.symmetric and np.any(zeros):
        raise SpecError(f"zero_point of {spec} must be 0, found {np.ravel(zeros)[np.flatnonzero(zeros)[0]]}")


@dataclass(frozen=True)
class _GridRounding(RoundingRule):
    """Rounding by scale and zero point, with the gradients of this module's table."""

    grid: RoundingGrid

    def round(
        self, x: Tensor, scale: Tensor, zero_point: Tensor | None, mask: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the rounded x and, if a gradient needs it, the mask, packed if the grid says so."""
        mask = mask and (self.grid.saturate or zero_point is not None)
        done = kernels.fake_quantize(x, scale, zero_point, self.grid, mask)
        if done is None:
            steps, found = round_to_grid(x, scale, zero_point, self.grid)
            done = (steps * scale).to(x.dtype), found
        y, inside = done
        if not mask or inside is None:
            return y, None
        return y, pack_mask(inside) if self.grid.packed_mask else inside

    def _masked(self, gradient: Tensor, saved: Saved) -> Tensor:
        packed = self.grid.packed_mask
        inside = unpack_mask(saved.inside, gradient.shape) if packed else saved.inside
        done = kernels.apply_mask(gradient, inside)
        return gradient * inside if done is None else done

    def by_x(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient inside, and outside without `saturate`."""
        return self._masked(gradient, saved) if self.grid.saturate else gradient

    def by_first(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of the scale, in its shape."""
        x, scale, zero_point, _ = saved
        done = kernels.fake_quantize(x, scale, zero_point, self.grid, derivative=True)
        if done is None:
            steps, inside = round_to_grid(x, scale, zero_point, self.grid)
            error = ARITHMETICS[self.grid.arithmetic](steps * scale - x.to(scale.dtype), scale)
            done = torch.where(inside, error, steps), None
        wide, derivative, shape = gradient.to(scale.dtype), done[0], scale.shape
        if shape.numel() == 1 and wide.is_contiguous() and derivative.is_contiguous():
            return torch.dot(wide.flatten(), derivative.flatten()).reshape(shape)
        return (wide * derivative).sum_to_size(shape)

    def by_second(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of the zero point, in its shape."""
        wide = gradient.to(saved.first.dtype)
        outside = self._masked(gradient, saved).to(wide.dtype) - wide
        return (outside * saved.first).sum_to_size(saved.second.shape)


@dataclass(frozen=True)
class _StraightThrough(RoundingRule):
    """Identity, or rounding to integers, halves to even; the gradient passes, multiplied by a factor."""

    factor: float = 1.0
    rounds: bool = False

    def round(self, x: Tensor, first: Any, second: Any, mask: bool) -> tuple[Tensor, None]:
        """Return x, rounded or not."""
        return torch.round(x) if self.rounds else x.view_as(x), None

    def by_x(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient, multiplied."""
        return gradient if self.factor == 1 else gradient * self.factor


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, with its gradient multiplied by `factor`."""
    return _StraightThrough(factor)(x, None, None)


def round_straight_through(x: Tensor) -> Tensor:
    """Return x rounded to integers, halves to even, with the gradient of the identity."""
    return _StraightThrough(rounds=True)(x, None, None)


def lsq_factor(elements: int, qtype: QType | str) -> float:
    """Return 1 / sqrt(elements * qmax), by which LSQ multiplies the gradient of a scale.

    A scale then moves, relative to its size, as fast as the weights.

    Args:
        elements: number of elements that share the scale.
        qtype: number type of the grid.
    """
    grid = as_qtype(qtype)
    return float((max(elements, 1) * grid.qmax) ** -0.5)


def fake_quantize_lsq(
    x: Tensor, scale: Tensor, offset: Tensor | float = 0.0, *, qtype: QType | str, axis: int | None = None
) -> Tensor:
    """Return x rounded to the grid `offset + scale * q`, with gradients and their scaling as in LSQ and LSQ+.

    Args:
        x: the tensor.
        scale: one value, or of shape [x.shape[axis]] with `axis`.
        offset: LSQ+'s beta, in units of x; 0 is LSQ.
        qtype: number type of the grid.
        axis: None for one scale per tensor.
    """
    factor = lsq_factor(x.numel() // max(scale.numel(), 1), qtype)
    scales = scale_gradient(scale, factor)
    if not isinstance(offset, Tensor):
        return fake_quantize(x - offset if offset else x, scales, qtype=qtype, axis=axis) + offset
    shift = scale_gradient(offset, factor)
    if shift.ndim == 1 and axis is not None:
        shift = shift.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
    return fake_quantize(x - shift, scales, qtype=qtype, axis=axis) + shift


def range_to_params(
    rmin: Tensor, rmax: Tensor, qtype: QType | str, symmetric: bool, rules: ParamRules | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return (scale, zero point) of a range, with gradients; the zero point is None if symmetric.

    The rules and bits are the same as in `onnxfq.choose_qparams`: computed in float64, the scale rounded to
    float32 once. Rounding of the zero point has the gradient of the identity, as in AIMET, and so does
    rounding of scales to a half type. Rounding to powers of two has none.
    """
    rules, grid = rules or ParamRules(), as_qtype(qtype)
    check_symmetry(grid, symmetric)
    wide = rmin.dtype == torch.float64

    def round_scale(step: Tensor) -> Tensor:
        step = round_up(step, rules.float_type)
        return step if wide else step.float().double()

    ends = rmin.double(), rmax.double()
    scale, zero = params_of_range(*ends, grid, symmetric, rules, round_scale, torch)
    scale = scale if wide else scale.float()
    if zero is not None and not rules.fractional_zero_point:
        zero = round_straight_through(zero)
    return scale, None if zero is None else zero.to(scale.dtype)


def ends_by_rule(rmin: Tensor, rmax: Tensor, qtype: QType, rule: str) -> tuple[Tensor, Tensor]:
    """Return a range whose symmetric scale by `range_to_params` is the one of `rule`, see `FakeQuantize`."""
    amax = torch.maximum(-rmin.double().clamp(max=0.0), rmax.double().clamp(min=0.0))
    step = amax / (qtype.qmax if rule == "amax" else (qtype.qmax - qtype.qmin) / 2)
    return torch.zeros_like(step), step * qtype.qmax


def round_up(scale: Tensor, kind: FloatType) -> Tensor:
    """Return positive scales rounded up to numbers of a half type (`round_scale`), with their gradient."""
    if kind == "float32":
        return scale
    dtype, fixed = getattr(torch, kind), scale.detach()
    near = fixed.to(dtype)
    up = near.to(scale.dtype) < fixed
    rounded = (near.view(torch.int16) + up.to(torch.int16)).view(dtype).to(scale.dtype)
    return scale + (rounded - fixed)  # the difference is exact, and so is the sum


def fake_quantize_range(
    x: Tensor,
    rmin: Tensor,
    rmax: Tensor,
    *,
    qtype: QType | str,
    symmetric: bool = False,
    axis: int | None = None,
    block_size: int | None = None,
    block_shape: Sequence[int] | None = None,
) -> Tensor:
    """Return x rounded to the grid that spans [rmin, rmax], with gradients for both ends, as in AIMET."""
    scale, zero_point = range_to_params(rmin, rmax, qtype, symmetric)
    zeros = 0 if zero_point is None else zero_point
    return fake_quantize(
        x, scale, zeros, qtype=qtype, axis=axis, block_size=block_size, block_shape=block_shape
    )


def fake_quantize_pact(x: Tensor, alpha: Tensor, *, qtype: QType | str) -> Tensor:
    """Return x clipped to [0, alpha] and rounded to the unsigned `qtype` over that range, as PACT.

    The gradient of alpha is the sum over x >= alpha; the gradient of x passes where 0 <= x < alpha.
    """
    grid = as_qtype(qtype)
    if grid.is_float or grid.qmin != 0:
        raise SpecError(f"PACT clips at 0 and takes unsigned integers, got {grid}; use uint{grid.bits}")
    ends = alpha.detach()
    scale, _ = range_to_params(torch.zeros_like(ends), ends, grid, symmetric=False)
    clipped = torch.where(x >= alpha, alpha.to(x.dtype), torch.where(x >= 0, x, torch.zeros_like(x)))
    return fake_quantize(clipped, scale, qtype=grid, saturate=False)

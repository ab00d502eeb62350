"""`pytorch_quantization.tensor_quant`: quantization by amax as functions, and the descriptors.

With bound = 2^(bits - 1) - 1, or 2^bits - 1 without a sign, and scale = bound / amax, the integers are
rn(x scale) within the grid. The values are integers / scale. This is the formula of the original's README.
Gradients pass where |x| <= amax. An amax of at most 2^-24 makes all zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import ArgumentError, SpecError
from onnxfq.torch.arguments import check_functions
from onnxfq.torch.compat.nvidia.descriptor import QuantDescriptor, check_bits
from onnxfq.torch.kernels import is_transforming
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.rounding import RoundingRule

ScaledQuantDescriptor = QuantDescriptor
QUANT_DESC_8BIT_PER_TENSOR = QuantDescriptor()
QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR = QuantDescriptor(unsigned=True)
QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW = QuantDescriptor(axis=0)
QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL = QuantDescriptor(axis=0)
QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL = QuantDescriptor(axis=0)
QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL = QuantDescriptor(axis=0)
QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL = QuantDescriptor(axis=1)
QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL = QuantDescriptor(axis=1)
QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL = QuantDescriptor(axis=1)

LEAST = 2.0**-24
"""Largest amax whose tensor becomes all zero: the smallest positive float16."""
E4M3_MOST = 448.0


def integer_bound(num_bits: int, unsigned: bool) -> int:
    """Return the largest integer of the grid. Raises SpecError if it is 0: one bit with a sign."""
    check_bits(num_bits)
    if isinstance(num_bits, (tuple, list)):
        raise ArgumentError("num_bits (4, 3) has no integers; use scaled_e4m3")
    bound: int = (1 << (num_bits - (not unsigned))) - 1
    if not bound:
        raise SpecError("1 bit with a sign has no integer but 0; give 2 bits, or unsigned=True")
    return bound


def _steps(x: Tensor, amax: Tensor, num_bits: int, unsigned: bool, narrow_range: bool) -> Tensor:
    """Return the integers. Half types are multiplied in float32, as the original does."""
    bound = integer_bound(num_bits, unsigned)
    _check_values(x, amax, unsigned)
    half = (torch.float16, torch.bfloat16) if x.is_cuda else (torch.float16,)
    work = x.float() if x.dtype in half else x
    low = 0 if unsigned else -bound - (not narrow_range)
    # In place: one tensor of x's size, where four operations would make four.
    steps = (work * _scale(amax, bound, 0.0)).round_()
    steps = (steps.clamp if is_transforming() else steps.clamp_)(low, bound)  # vmap has no clamp_
    return steps


def _scale(amax: Tensor, bound: int, empty: float) -> Tensor:
    """Return bound / amax, or `empty` for an amax that makes all zero."""
    wide = amax.float() if amax.dtype == torch.float16 else amax
    return torch.where(amax <= LEAST, empty, torch.tensor(float(bound), device=amax.device) / wide)


def _check_values(x: Tensor, amax: Tensor, unsigned: bool) -> None:
    if not x.is_floating_point():
        raise ArgumentError(f"inputs must be floats, got {x.dtype}; convert them with float()")
    try:
        torch.broadcast_shapes(x.shape, amax.shape)
    except RuntimeError as error:
        shapes = f"{list(amax.shape)} and {list(x.shape)}"
        raise SpecError(f"amax must broadcast against inputs, got shapes {shapes}; reshape amax") from error
    if torch.compiler.is_compiling() or is_exporting() or is_transforming() or x.is_meta:
        return
    if unsigned and x.numel() and x.min() < 0:
        raise ArgumentError("Negative values encountered in an unsigned tensor; use unsigned=False")
    if amax.min() < 0:
        raise SpecError(f"Negative values in amax, found {float(amax.min())}; give the largest magnitude")


def _real(x: Tensor, amax: Tensor, *grid: Any) -> Tensor:
    steps = _steps(x, amax, *grid)
    return steps.half() if x.dtype == torch.float16 else steps


def _fake(x: Tensor, amax: Tensor, *grid: Any) -> Tensor:
    scale = _scale(amax, integer_bound(*grid[:2]), 1.0)
    if x.is_cuda:  # the original's kernel divides in float32 there
        return _steps(x, amax, *grid).div_(scale).to(x.dtype)
    return _real(x, amax, *grid).div_(scale.to(x.dtype))


def _e4m3(x: Tensor, amax: Tensor) -> Tensor:
    scale = E4M3_MOST / amax
    scaled = x * scale
    rounded = scaled.clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn).to(scaled.dtype)
    # A tiny amax makes the scale infinite; what float16 holds as 0 stays 0.
    return torch.where(x.abs() < LEAST, 0.0, rounded.div_(scale))


def _affine(x: Tensor, high: Tensor, low: Tensor, num_bits: int) -> Tensor:
    step = (high - low) / (2.0**num_bits - 1)
    first = -(2.0 ** (num_bits - 1))
    zero = torch.round(low / step) - first
    integers = (torch.round(x / step) - zero).clamp_(first, -first - 1)
    return (integers + zero) * step


@dataclass(frozen=True)
class _Formula(RoundingRule):
    """Rounding by a formula; the grid is from `low`, by default -`high`, to `high`."""

    formula: Callable[..., Tensor]
    grid: tuple[Any, ...] = ()

    def round(self, x: Tensor, high: Any, low: Any, mask: bool) -> tuple[Tensor, Tensor | None]:
        """Return the result of the formula and, if `mask`, what lies between the ends."""
        y = self.formula(x, high, *(() if low is None else (low,)), *self.grid)
        return y, (x <= high) & (x >= (-high if low is None else low)) if mask else None


def fake_tensor_quant(
    inputs: Tensor, amax: Tensor | float, num_bits: int = 8, unsigned: bool = False, narrow_range: bool = True
) -> Tensor:
    """Return `inputs` rounded to the grid of amax.

    Args:
        inputs: floats.
        amax: largest magnitude of the grid; it broadcasts against `inputs`.
        num_bits: bits of the integers.
        unsigned: integers from 0.
        narrow_range: the lowest integer is minus the highest.

    Raises SpecError for a negative amax or a width without integers, ArgumentError for negative values in an
    unsigned tensor and for integers. Values are not checked while torch compiles or exports.
    """
    return _Formula(_fake, (num_bits, unsigned, narrow_range))(*_tensors(inputs, amax), None)


legacy_fake_tensor_quant = fake_tensor_quant


def tensor_quant(
    inputs: Tensor, amax: Tensor | float, num_bits: int = 8, unsigned: bool = False, narrow_range: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (integers as floats, scale); integers / scale are the values of `fake_tensor_quant`.

    It has the arguments and errors of `fake_tensor_quant`. A scale that float16 inputs cannot hold is a
    SpecError.
    """
    x, most = _tensors(inputs, amax)
    integers = _Formula(_real, (num_bits, unsigned, narrow_range))(x, most, None)
    scale = _scale(most, integer_bound(num_bits, unsigned), 1.0).to(x.dtype)
    if inputs.dtype == torch.float16 and not torch.compiler.is_compiling() and scale.isinf().any():
        raise SpecError(f"scale is too large for FP16 with amax={amax}; use float32 inputs")
    return integers, scale


def scaled_e4m3(inputs: Tensor, amax: Tensor | float | None = None, E: int = 4, M: int = 3) -> Tensor:
    """Return `inputs` rounded to float8 numbers with 4 exponent and 3 mantissa bits, times amax / 448.

    Args:
        inputs: floats.
        amax: the value of the largest float8 number; None for 448.
        E: exponent bits, 4 only.
        M: mantissa bits, 3 only.
    """
    if (E, M) != (4, 3):
        raise SpecError(f"scaled_e4m3 has E=4 and M=3 only, got E={E!r} and M={M!r}; leave them out")
    return _Formula(_e4m3)(*_tensors(inputs, E4M3_MOST if amax is None else amax), None)


def fake_affine_tensor_quant(
    inputs: Tensor, min_range: Tensor | float, max_range: Tensor | float, num_bits: int = 8
) -> Tensor:
    """Return `inputs` rounded to 2^bits numbers from min_range to max_range, with a zero point (gemmlowp's).

    Raises SpecError unless max_range is above min_range.
    """
    integer_bound(num_bits, True)
    x, low = _tensors(inputs, min_range)
    high = _tensors(inputs, max_range)[1]
    if not (torch.compiler.is_compiling() or is_exporting()) and not (high > low).all():
        raise SpecError(f"max_range must be above min_range, got {max_range} and {min_range}; exchange them")
    return _Formula(_affine, (num_bits,))(x, high, low)


def _tensors(inputs: Tensor, limit: Any) -> tuple[Tensor, Tensor]:
    fixed = limit.detach() if isinstance(limit, Tensor) else torch.tensor(float(limit), device=inputs.device)
    return inputs, fixed


check_functions(globals())

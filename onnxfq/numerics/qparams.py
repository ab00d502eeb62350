"""Scale and zero point from a range, by the rule of ONNX and TensorRT or of AIMET."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError
from onnxfq.numerics.affine import as_qtype, numbers
from onnxfq.numerics.float_types import FLOATS, FloatType, round_scale
from onnxfq.numerics.qtypes import QType

MIN_SCALE = FLOATS["float32"].smallest_scale
_LARGEST = FLOATS["float32"].largest


_LARGEST_POWER = 2.0**127


@dataclass(frozen=True)
class ParamRules:
    """Constraints on scale and zero point in addition to the range.

    Attributes:
        power_of_two: the scale is rounded up to a power of two, so that no further value saturates; hardware
            then shifts instead of multiplying.
        fractional_zero_point: the zero point is float32 and not rounded; `FakeQuantize` takes it, Q/DQ does
            not, and 0.0 may lie between two numbers of the grid.
        float_type: type of the tensor, which its scale must have in a model. A scale is rounded up to a
            number of this type, and a range is narrowed until every number of the grid is finite in it.
    """

    power_of_two: bool = False
    fractional_zero_point: bool = False
    float_type: FloatType = "float32"


def choose_qparams(
    rmin: ArrayLike, rmax: ArrayLike, qtype: QType | str, symmetric: bool, rules: ParamRules | None = None
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return (scale float32, zero_point int32) of the shape of `rmin` and `rmax`.

    Symmetric: scale = max(rmax / qmax, rmin / qmin), zero_point 0: the finest grid that holds both ends. An
    integer type has one more number below 0 than above, which the lower end may use (AIMET's rule; where
    rmin = -rmax, and for floats, it is the largest magnitude / qmax, NVIDIA's rule).
    Asymmetric: the range is widened to include 0, scale = (rmax - rmin) / (qmax - qmin),
    zero_point = rint(qmin - rmin / scale), so that 0.0 is exactly representable (ONNX's QuantizeLinear,
    gemmlowp).
    A range of zero width at 0 (a dead channel) gets scale 1; a scale below the smallest normal float32 is
    raised to it, or to 2^-24 for float16. Raises SpecError for ranges that are not numbers, are NaN,
    inverted or beyond float32, for an asymmetric float type, and for a symmetric type without numbers on both
    sides of 0.
    """
    rules = rules or ParamRules()
    qtype = as_qtype(qtype)
    check_symmetry(qtype, symmetric)
    low, high = _ends(rmin, rmax)
    most = reach(qtype, symmetric, rules.float_type)
    low, high = np.clip(low, -most, 0.0), np.clip(high, 0.0, most)
    if symmetric:
        scale = _symmetric_step(low, high, qtype)
    else:
        scale = (high - low) / (qtype.qmax - qtype.qmin)
    dead = scale == 0.0
    limited = np.clip(scale, FLOATS[rules.float_type].smallest_scale, _LARGEST)
    if rules.power_of_two:
        limited = _next_power_of_two(limited)
    scale32 = round_scale(np.where(dead, 1.0, limited), rules.float_type)
    if symmetric:
        return scale32, np.zeros(scale32.shape, np.int32)
    zero = np.clip(qtype.qmin - low / scale32.astype(np.float64), qtype.qmin, qtype.qmax)
    if rules.fractional_zero_point:
        return scale32, zero.astype(np.float32)
    return scale32, np.rint(zero).astype(np.int32)


def adjust_min_max(
    rmin: ArrayLike, rmax: ArrayLike, qtype: QType | str, symmetric: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (rmin, rmax) float32 as AIMET encodes them: the ends of the grid.

    Asymmetric: the range is widened to include 0, delta = (rmax - rmin) / (2^bits - 1) in float32,
    offset = round(rmin / delta), rmin = offset * delta, rmax = rmin + (2^bits - 1) * delta.
    Symmetric: delta = max(rmax / qmax, rmin / qmin), rmin = qmin * delta, rmax = qmax * delta. AIMET's strict
    symmetric is a qtype without its lowest number, as int8[-127,127]; its unsigned symmetric is an unsigned
    qtype with symmetric=True, for nonnegative values. A range of zero width gets delta 1, as in
    `choose_qparams`.

    Source: AIMET's StaticEncodingAnalyzer and aimet_torch.quantization.affine (Qualcomm, BSD-3-Clause).
    Raises SpecError as `choose_qparams` does, and for an unsigned symmetric range below 0.
    """
    qtype = as_qtype(qtype)
    low, high = _ends(rmin, rmax)
    unsigned = symmetric and qtype.qmin == 0 and not qtype.is_float
    if unsigned and (low < 0.0).any():
        raise SpecError(
            f"unsigned symmetric {qtype} holds no negative numbers, the range starts at {low.min():g}; "
            f"use int{qtype.bits}"
        )
    if not unsigned:
        check_symmetry(qtype, symmetric)
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if symmetric:
        delta = _delta(high / qtype.qmax if unsigned else _symmetric_step(low, high, qtype))
        return np.float32(qtype.qmin) * delta, np.float32(qtype.qmax) * delta
    steps = qtype.qmax - qtype.qmin
    delta = _delta((high - low) / steps)
    offset = np.clip(np.rint(low.astype(np.float32) / delta), np.float32(-steps), np.float32(0))
    return offset * delta, (offset + np.float32(steps)) * delta


def _ends(rmin: ArrayLike, rmax: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both ends of ranges in float64. Raises SpecError as `choose_qparams` does."""
    low, high = numbers(rmin, "rmin").astype(np.float64), numbers(rmax, "rmax").astype(np.float64)
    check_ranges(low, high)
    return low, high


def _symmetric_step(low: NDArray[np.float64], high: NDArray[np.float64], qtype: QType) -> NDArray[np.float64]:
    """Return the least scale whose grid holds [low, high], where low <= 0 <= high; 0 for [0, 0]."""
    return np.maximum(high / qtype.qmax, low / qtype.qmin)


def _delta(width: NDArray[np.float64]) -> NDArray[np.float32]:
    limited = np.where(width == 0.0, 1.0, np.maximum(width, MIN_SCALE))
    return np.asarray(limited, np.float32)


def reach(qtype: QType, symmetric: bool, float_type: FloatType) -> float:
    """Return the largest magnitude of a range whose grid stays finite in `float_type`.

    The grid exceeds its range by the rounding of the scale, and by half a step to include 0.
    """
    if float_type == "float32":
        return _LARGEST
    beyond = FLOATS[float_type].step + (0.0 if symmetric else 1.0 / (qtype.qmax - qtype.qmin))
    return FLOATS[float_type].largest * (1.0 - beyond)


def _next_power_of_two(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    # frexp: scale = fraction * 2^exponent with fraction in [1/2, 1); 1/2 is already a power of two.
    fraction, exponent = np.frexp(scale)
    power = np.ldexp(1.0, exponent - (fraction == 0.5))
    return np.asarray(np.minimum(power, _LARGEST_POWER))


def check_symmetry(qtype: QType, symmetric: bool) -> None:
    """Raise SpecError if `qtype` does not support `symmetric`."""
    if symmetric and not qtype.qmin < 0 < qtype.qmax:
        kind = "numbers on both sides of 0" if qtype.signed else "a signed qtype"
        raise SpecError(f"symmetric needs {kind}, got {qtype}; use int{qtype.bits} or symmetric: false")
    if qtype.is_float and not symmetric:
        raise SpecError(f"{qtype} has no zero point; use symmetric: true, or an integer qtype")


def check_ranges(rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> None:
    """Raise SpecError for a range that is NaN, infinite in float32 or inverted."""
    # Comparisons with NaN are false: NaN is rejected as well.
    finite = (np.abs(rmin) <= _LARGEST) & (np.abs(rmax) <= _LARGEST)
    if not finite.all():
        raise SpecError(
            f"a range must be finite in float32, got {_first(rmin, rmax, ~finite)}; "
            "remove NaN and infinities from the data it came from"
        )
    inverted = rmin > rmax
    if inverted.any():
        raise SpecError(
            f"a range must not be inverted, got {_first(rmin, rmax, inverted)}; give the smaller end first"
        )


def _first(rmin: NDArray[np.float64], rmax: NDArray[np.float64], where: NDArray[np.bool_]) -> str:
    low, high, where = np.broadcast_arrays(rmin, rmax, where)
    return f"[{low[where][0]:g}, {high[where][0]:g}]"

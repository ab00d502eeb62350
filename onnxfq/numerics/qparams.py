"""Scale and zero point from a range, by the rule of ONNX and TensorRT or of AIMET."""

from __future__ import annotations

from collections.abc import Callable
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
    inverted or beyond float32, for an asymmetric float type, and for a symmetric type without numbers on
    both sides of 0.
    """
    qtype, rules = as_qtype(qtype), rules or ParamRules()
    check_symmetry(qtype, symmetric)
    low, high = _ends(rmin, rmax)

    def rounded(step: Any) -> Any:
        return round_scale(step, rules.float_type).astype(np.float64)

    scale, zero = params_of_range(low, high, qtype, symmetric, rules, rounded)
    if zero is None:
        return scale.astype(np.float32), np.zeros(scale.shape, np.int32)
    kept = zero.astype(np.float32) if rules.fractional_zero_point else np.rint(zero).astype(np.int32)
    return scale.astype(np.float32), kept


def params_of_range(
    low: Any,
    high: Any,
    qtype: QType,
    symmetric: bool,
    rules: ParamRules,
    round_scale: Callable[[Any], Any],
    library: Any = np,
) -> tuple[Any, Any]:
    """Return the scale of a range, and its zero point before it is rounded, both float64; None if symmetric.

    Args:
        low: lower ends, float64.
        high: upper ends, of the same shape.
        qtype: number format.
        symmetric: as in `choose_qparams`, whose rules hold.
        rules: constraints in addition to the range.
        round_scale: rounds float64 scales to numbers of the type that they are stored in.
        library: NumPy, or torch for its tensors.
    """
    most = reach(qtype, symmetric, rules.float_type)
    low, high = library.clip(low, -most, 0.0), library.clip(high, 0.0, most)
    if symmetric:
        step = _symmetric_step(low, high, qtype, library)
    else:
        step = (high - low) / (qtype.qmax - qtype.qmin)
    limited = library.clip(step, FLOATS[rules.float_type].smallest_scale, _LARGEST)
    limited = library.where(step == 0, 1.0, limited)
    if rules.power_of_two:
        # frexp: limited = fraction * 2^exponent with fraction in [1/2, 1); 1/2 is already a power of two.
        fraction, exponent = library.frexp(limited)
        exponent = library.where(fraction == 0.5, exponent - 1, exponent)
        limited = library.clip(library.ldexp(library.ones_like(limited), exponent), None, _LARGEST_POWER)
    scale = round_scale(limited)
    return scale, None if symmetric else library.clip(qtype.qmin - low / scale, qtype.qmin, qtype.qmax)


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


def _symmetric_step(low: Any, high: Any, qtype: QType, library: Any = np) -> Any:
    """Return the least scale whose grid holds [low, high], where low <= 0 <= high; 0 for [0, 0]."""
    return library.maximum(high / qtype.qmax, low / qtype.qmin)


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

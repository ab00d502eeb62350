"""Rounding to integers by name of the mode, and to small float formats.

| name      | 2.5 | -2.5 | 3.5 | 2.7 | -2.7 | used by                      |
|-----------|-----|------|-----|-----|------|------------------------------|
| half_even | 2   | -2   | 4   | 3   | -3   | ONNX, TensorRT, torch        |
| half_up   | 3   | -2   | 4   | 3   | -3   | Horizon: floor(v + 0.5)      |
| half_away | 3   | -3   | 4   | 3   | -3   | AIMET, C's round             |
| half_down | 2   | -2   | 3   | 3   | -3   | halves towards zero          |
| floor     | 2   | -3   | 3   | 2   | -3   |                              |
| ceil      | 3   | -2   | 4   | 3   | -2   |                              |
| truncate  | 2   | -2   | 3   | 2   | -2   | towards zero                 |

Small float formats round in NumPy as the C++ twin, float_formats.h, does:

    value = integer * step,   step = 2^(max(exponent(value), min_exponent) - mantissa_bits)

Below 2^min_exponent, for subnormal numbers, the step is constant. A step is a power of two: division and
multiplication by it are exact, and only the conversion to an integer rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.qtypes import QType

Float32Array = NDArray[np.float32]


def _half_up(v: Float32Array) -> Float32Array:
    # Exactly Horizon's definition: the sum rounds too, and the largest float below a half becomes 1.
    result: Float32Array = np.floor(v + np.float32(0.5))
    return result


def _half_away(v: Float32Array) -> Float32Array:
    whole: Float32Array = np.trunc(v)
    result: Float32Array = whole + np.where(np.abs(v - whole) >= 0.5, np.copysign(np.float32(1), v), 0)
    return result


def _half_down(v: Float32Array) -> Float32Array:
    whole: Float32Array = np.trunc(v)
    result: Float32Array = whole + np.where(np.abs(v - whole) > 0.5, np.copysign(np.float32(1), v), 0)
    return result


ROUNDINGS: dict[str, Callable[[Float32Array], Float32Array]] = {
    "half_even": np.rint,
    "half_up": _half_up,
    "half_away": _half_away,
    "half_down": _half_down,
    "floor": np.floor,
    "ceil": np.ceil,
    "truncate": np.trunc,
}


# Result of an overflow by `FloatLayout.special`; a format with neither always saturates.
_BEYOND = {"ieee": np.inf, "fn": np.nan, "fnuz": np.nan}


def round_to_float_grid(
    v: Float32Array, qtype: QType, rounding: str = "half_even", saturate: bool = True
) -> Float32Array:
    """Return v rounded to the nearest numbers of `qtype`, float32.

    -0 stays if the format has it; NaN stays.

    Args:
        v: values, float32.
        qtype: small float format.
        rounding: name in `ROUNDINGS`.
        saturate: True turns larger values, also infinity, into the largest finite number. False turns values
            that round to more into the format's infinity, or into NaN if it has no infinity.
    """
    assert qtype.layout is not None
    layout = qtype.layout
    qmax = np.float32(qtype.qmax)
    can_overflow = not saturate and layout.special in _BEYOND
    limit = 2 * qmax if can_overflow else qmax
    limited = np.clip(v, -limit, limit)
    # frexp: limited = fraction * 2^exponent with fraction in [1/2, 1). NaN and 0 have exponent 0.
    exponent = np.maximum(np.frexp(limited)[1] - 1, 1 - layout.bias) - layout.mantissa_bits
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(ROUNDINGS[rounding](np.ldexp(limited, -exponent)), exponent)
    result = np.copysign(rounded, v)
    if can_overflow:
        beyond = np.float32(_BEYOND[layout.special])
        result = np.where(np.abs(rounded) > qmax, np.copysign(beyond, v), result)
    if layout.special == "fnuz":  # without -0
        result = result + np.float32(0)
    on_grid: Float32Array = result.astype(np.float32)
    return on_grid

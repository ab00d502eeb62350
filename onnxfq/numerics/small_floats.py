"""Rounding to the numbers of a small float format, in NumPy. The C++ twin is float_formats.h.

    value = integer * step,   step = 2^(max(exponent(value), min_exponent) - mantissa_bits)

Below 2^min_exponent the step stays what it is there: those are the subnormal numbers. A step is a power of
two, so measuring a value in steps and going back are exact; rounding to an integer is all that rounds.
"""

from __future__ import annotations

import numpy as np

from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.rounding import ROUNDINGS, Float32Array

# What an overflow becomes, by `FloatLayout.special`; a format with neither saturates always.
_BEYOND = {"ieee": np.inf, "fn": np.nan, "fnuz": np.nan}


def round_to_float_grid(
    v: Float32Array, qtype: QType, rounding: str = "half_even", saturate: bool = True
) -> Float32Array:
    """Return v rounded to the nearest numbers of `qtype`, float32.

    saturate: what is larger than the largest finite number, infinity too, becomes that; else what rounds to
    more becomes the format's infinity, or NaN where it has none. -0 stays where the format has it; NaN stays.
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
    if layout.special == "fnuz":  # there is no -0
        result = result + np.float32(0)
    on_grid: Float32Array = result.astype(np.float32)
    return on_grid

"""Rounding to small float formats in NumPy; C++ twin: float_formats.h.

    value = integer * step,   step = 2^(max(exponent(value), min_exponent) - mantissa_bits)

Below 2^min_exponent, for subnormal numbers, the step is constant. A step is a power of two: division and
multiplication by it are exact, and only the conversion to an integer rounds.
"""

from __future__ import annotations

import numpy as np

from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.rounding import ROUNDINGS, Float32Array

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

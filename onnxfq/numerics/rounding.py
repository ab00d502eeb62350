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

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.qtypes import QType

Float32Array = NDArray[np.float32]


def _round_away(v: Any, is_far: Callable[[Any, float], Any], library: Any) -> Any:
    """Return v rounded to the nearest integer, to the farther one where `is_far` says so of the fraction."""
    whole = library.trunc(v)
    up = library.copysign(library.ones_like(v), v)
    return whole + library.where(is_far(library.abs(v - whole), 0.5), up, 0)


ROUNDINGS: dict[str, Callable[..., Any]] = {
    "half_even": lambda v, library=np: library.round(v),
    # Exactly Horizon's definition: the sum rounds too, and the largest float below a half becomes 1.
    "half_up": lambda v, library=np: library.floor(v + 0.5),
    "half_away": lambda v, library=np: _round_away(v, operator.ge, library),
    "half_down": lambda v, library=np: _round_away(v, operator.gt, library),
    "floor": lambda v, library=np: library.floor(v),
    "ceil": lambda v, library=np: library.ceil(v),
    "truncate": lambda v, library=np: library.trunc(v),
}
"""Roundings by name, of floats of NumPy, or of another library with functions of the same names."""


BEYOND = {"ieee": np.inf, "fn": np.nan, "fnuz": np.nan}
"""Result of an overflow by `FloatLayout.special`; a format with neither always saturates."""


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
    can_overflow = not saturate and layout.special in BEYOND
    limit = 2 * qmax if can_overflow else qmax
    limited = np.clip(v, -limit, limit)
    # frexp: limited = fraction * 2^exponent with fraction in [1/2, 1). NaN and 0 have exponent 0.
    exponent = np.maximum(np.frexp(limited)[1] - 1, 1 - layout.bias) - layout.mantissa_bits
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(ROUNDINGS[rounding](np.ldexp(limited, -exponent)), exponent)
    result = np.copysign(rounded, v)
    if can_overflow:
        beyond = np.float32(BEYOND[layout.special])
        result = np.where(np.abs(rounded) > qmax, np.copysign(beyond, v), result)
    if layout.special == "fnuz":  # without -0
        result = result + np.float32(0)
    on_grid: Float32Array = result.astype(np.float32)
    return on_grid

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
    v: Any, qtype: QType, rounding: str = "half_even", saturate: bool = True, library: Any = np
) -> Any:
    """Return v rounded to the nearest numbers of `qtype`, of v's type.

    -0 stays if the format has it; NaN stays. Powers of two are assembled from their bits, which is exact; a
    pow function may not be.

    Args:
        v: array of float32, or of float64 for gradient checks.
        qtype: small float format.
        rounding: name in `ROUNDINGS`.
        saturate: True turns larger values, also infinity, into the largest finite number. False turns values
            that round to more into the format's infinity, or into NaN if it has no infinity.
        library: NumPy, or torch for its tensors.
    """
    assert qtype.layout is not None
    layout, qmax = qtype.layout, float(qtype.qmax)
    # Float bits: shift and bias of the exponent, and the integer type of the same width.
    wide = v.dtype == library.float64
    shift, bias, integer = (52, 1023, library.int64) if wide else (23, 127, library.int32)
    can_overflow = not saturate and layout.special in BEYOND
    limit = 2 * qmax if can_overflow else qmax
    limited = library.clip(v, -limit, limit)
    exponent = ((limited.view(integer) >> shift) & (2 * bias + 1)) - bias
    exponent = library.clip(exponent, 1 - layout.bias, None) - layout.mantissa_bits
    step, inverse = (((bias + sign * exponent) << shift).view(v.dtype) for sign in (1, -1))
    rounded = ROUNDINGS[rounding](limited * inverse, library) * step
    result = library.copysign(rounded, v)
    if can_overflow:
        beyond = library.copysign(library.full_like(v, BEYOND[layout.special]), v)
        result = library.where(abs(rounded) > qmax, beyond, result)
    return result + 0.0 if layout.special == "fnuz" else result  # fnuz has no -0

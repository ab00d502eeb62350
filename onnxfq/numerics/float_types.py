"""The float types in which tensors of a model are quantized: their NumPy dtypes and their numbers."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FloatType = Literal["float32", "float16", "bfloat16"]

FLOAT_DTYPES: dict[FloatType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Name -> NumPy dtype. Arithmetic is float32 for all of them, rounded once."""


_INFO = {kind: ml_dtypes.finfo(dtype) for kind, dtype in FLOAT_DTYPES.items()}
_LARGEST = {kind: float(info.max) for kind, info in _INFO.items()}
_STEPS = {kind: float(info.eps) for kind, info in _INFO.items()}
_SMALLEST = {kind: float(info.tiny) for kind, info in _INFO.items()} | {
    "float16": float(_INFO["float16"].smallest_subnormal)
}


def largest(kind: FloatType) -> float:
    """Return the largest finite number of `kind`."""
    return _LARGEST[kind]


def step_at_one(kind: FloatType) -> float:
    """Return the distance from 1 to the next number of `kind`."""
    return _STEPS[kind]


def smallest_scale(kind: FloatType) -> float:
    """Return the smallest number of `kind` that is used as a scale.

    The smallest normal one of float32 and bfloat16: GPUs flush what is below to zero. Of float16 the
    smallest of all, 2^-24: hardware keeps its subnormal numbers, and the ranges of real weights reach there.
    """
    return _SMALLEST[kind]


def round_scale(scale: NDArray[np.float64], kind: FloatType) -> NDArray[np.float32]:
    """Return positive scales as numbers of `kind`, in float32.

    float32: the nearest. float16 and bfloat16, whose steps are coarse: the next one that is not smaller, so
    that no value saturates that did not before.
    """
    if kind == "float32":
        return scale.astype(np.float32)
    near = scale.astype(FLOAT_DTYPES[kind])
    # The codes of positive floats are in the order of the numbers.
    codes = near.view(np.uint16) + (near.astype(np.float64) < scale)
    return np.asarray(codes.astype(np.uint16).view(FLOAT_DTYPES[kind]).astype(np.float32))


def holds(values: NDArray[Any], kind: FloatType) -> bool:
    """Tell whether float32 `values` are all numbers of `kind`."""
    with np.errstate(over="ignore"):
        return bool((values.astype(FLOAT_DTYPES[kind]).astype(values.dtype) == values).all())

"""Array fields of an encoding: read-only NumPy arrays in memory, flat lists in JSON."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any

import numpy as np
import pydantic
from numpy.typing import NDArray


def _to_numbers(values: Any) -> NDArray[Any]:
    try:
        numbers = np.asarray(values)
    except (ValueError, OverflowError):
        numbers = np.asarray(None)
    if numbers.size and numbers.dtype.kind not in "fiu":
        raise ValueError(f"must be a list of numbers, got {values!r:.40}")
    return numbers


def _lock(values: NDArray[Any], info: pydantic.ValidationInfo) -> NDArray[Any]:
    """Return `values`, not shared with anyone, read-only and of param_shape where there are as many."""
    shape = info.data.get("param_shape", ())
    if values.size == prod(shape) and min(shape, default=0) >= 0:
        values = values.reshape(shape)
    values.flags.writeable = False
    return values


def _to_scale(values: Any, info: pydantic.ValidationInfo) -> NDArray[np.float32]:
    return _lock(cast(_to_numbers(values), np.float32), info)


def _to_zero_point(values: Any, info: pydantic.ValidationInfo) -> NDArray[Any]:
    """Return int32, or float32 where fractions are allowed; what breaks a rule as it is, for the message."""
    numbers, spec = _to_numbers(values), info.data.get("spec")
    fractional = spec is not None and spec.zero_point == "fractional"
    dtype = np.float32 if fractional else np.int32
    if not np.count_nonzero(numbers):
        return _lock(np.zeros(numbers.shape, dtype), info)  # memory that is never touched
    made = cast(numbers, dtype)
    exact = fractional or numbers.dtype == dtype or np.array_equal(made, numbers)
    return _lock(made if exact else numbers.copy(), info)


def cast(numbers: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return a copy of another type; what is beyond it becomes what no rule allows."""
    if numbers.dtype == dtype:
        return numbers.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(dtype, order="C")


def _spell(values: NDArray[Any], info: pydantic.SerializationInfo) -> Any:
    return values if info.context == KEEP_ARRAYS else tuple(values.ravel().tolist())


KEEP_ARRAYS = "keep arrays"
"""Context in which arrays are serialized as they are, for an array file; else their elements in C order."""

ScaleField = Annotated[
    NDArray[np.float32], pydantic.PlainValidator(_to_scale), pydantic.PlainSerializer(_spell)
]
ZeroPointField = Annotated[
    NDArray[Any], pydantic.PlainValidator(_to_zero_point), pydantic.PlainSerializer(_spell)
]

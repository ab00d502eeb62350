"""Rounding modes by name.

| name      | 2.5 | -2.5 | 3.5 | 2.7 | -2.7 | used by                      |
|-----------|-----|------|-----|-----|------|------------------------------|
| half_even | 2   | -2   | 4   | 3   | -3   | ONNX, TensorRT, torch        |
| half_up   | 3   | -2   | 4   | 3   | -3   | Horizon: floor(v + 0.5)      |
| half_away | 3   | -3   | 4   | 3   | -3   | AIMET, C's round             |
| half_down | 2   | -2   | 3   | 3   | -3   | halves towards zero          |
| floor     | 2   | -3   | 3   | 2   | -3   |                              |
| ceil      | 3   | -2   | 4   | 3   | -2   |                              |
| truncate  | 2   | -2   | 3   | 2   | -2   | towards zero                 |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]


def _half_even(v: Float32Array) -> Float32Array:
    return np.rint(v)


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


def _floor(v: Float32Array) -> Float32Array:
    return np.floor(v)


def _ceil(v: Float32Array) -> Float32Array:
    return np.ceil(v)


def _truncate(v: Float32Array) -> Float32Array:
    return np.trunc(v)


ROUNDINGS: dict[str, Callable[[Float32Array], Float32Array]] = {
    "half_even": _half_even,
    "half_up": _half_up,
    "half_away": _half_away,
    "half_down": _half_down,
    "floor": _floor,
    "ceil": _ceil,
    "truncate": _truncate,
}

"""From a real range to scale and zero point: `choose_qparams`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError
from onnxfq.qtypes import QType

# Below the smallest normal float32 a scale would lose bits, or be flushed to zero by the target.
MIN_SCALE = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)


def choose_qparams(
    rmin: ArrayLike, rmax: ArrayLike, qtype: QType, symmetric: bool
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return (scale float32, zero_point int32) of the shape of `rmin` and `rmax`.

    symmetric: scale = amax / qmax with amax = max(|rmin|, |rmax|), zero_point 0 (TensorRT's rule).
    asymmetric: the range is widened to hold 0, scale = (rmax - rmin) / (qmax - qmin),
    zero_point = rint(qmin - rmin / scale), so that 0.0 is exactly representable (ONNX's
    QuantizeLinear, gemmlowp).
    A range of zero width at 0 (a dead channel) gets scale 1; a scale below the smallest normal
    float32 is raised to it. Raises SpecError for ranges that are NaN, inverted or beyond float32.
    """
    low, high = np.asarray(rmin, np.float64), np.asarray(rmax, np.float64)
    _check_ranges(low, high)
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if symmetric:
        scale = np.maximum(-low, high) / qtype.qmax
    else:
        scale = (high - low) / (qtype.qmax - qtype.qmin)
    dead = scale == 0.0
    scale32 = np.where(dead, 1.0, np.maximum(scale, MIN_SCALE)).astype(np.float32)
    if symmetric:
        return scale32, np.zeros(scale32.shape, np.int32)
    zero = np.rint(qtype.qmin - low / scale32.astype(np.float64))
    return scale32, np.clip(zero, qtype.qmin, qtype.qmax).astype(np.int32)


def _check_ranges(rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> None:
    # Comparisons with NaN are false, so NaN is refused as well.
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

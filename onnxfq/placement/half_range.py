"""Range checks of a half type: overflow and underflow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.float_types import FloatInfo

MARGIN = 2.0
"""Factor by which new data may exceed the observed range."""
STANDS_FOR_INFINITY = 1e8
"""Least magnitude of stand-ins for infinity: attention masks use -1e9, -3.4e38 and the like.

No other data reaches this far on one side only.
"""
FEWEST_DB = 50.0
"""Least SQNR of a tensor in the half type; an int8 grid leaves about 40 dB."""


def unfit(found: TensorStatistics, half: FloatInfo) -> str:
    """Return why the values of `found` do not fit in `half`, with their range; empty if they fit."""
    real, (low, high) = _real(found), found.edges()
    lost = _describe_loss(np.abs((low + high) / 2)[real], found.counts[real], half)
    return find_overflow(found, half) or lost


def find_overflow(found: TensorStatistics, half: FloatInfo) -> str:
    """Return the range of `found` if `half` does not hold it, or almost; empty if it does."""
    low, high = found.edges()
    far = float(np.maximum(np.abs(low), np.abs(high))[_real(found)].max(initial=0.0))
    if far * MARGIN <= half.largest:
        return ""
    return f"its values go from {found.rmin:.6g} to {found.rmax:.6g}, {_limit(far, half)}"


def masks(found: TensorStatistics, half: FloatInfo) -> bool:
    """Tell whether `found` has stand-ins for minus infinity beyond the range of `half`."""
    return not _real(found).all() and -found.rmin > half.largest


def smallest_magnitude(found: TensorStatistics | None) -> float:
    """Return the least |x| above 0, within a bin of the histogram; infinity without data."""
    if found is None:
        return float("inf")
    low, high = found.edges()
    least = np.minimum(np.abs(low), np.abs(high))
    most = np.maximum(np.abs(low), np.abs(high))
    # The bin at zero has no least magnitude: its far edge stands for it.
    return float(np.where(least > 0, least, most)[most > 0].min(initial=np.inf))


def _real(found: TensorStatistics) -> NDArray[np.bool_]:
    """Tell for each bin whether it holds real values, not stand-ins for minus infinity."""
    low, high = found.edges()
    kept = np.ones(low.size, bool)
    beyond = high < -STANDS_FOR_INFINITY
    # Values that reach this far gradually, or on both sides, are real.
    between = (low < -1e5) & ~beyond
    if beyond.any() and not between.any() and found.rmax <= 1e5:
        kept = ~beyond
    return kept


def _limit(far: float, half: FloatInfo) -> str:
    if far > half.largest:
        return f"beyond {half.largest:.6g}, the largest number of the type"
    return f"within a factor of {MARGIN:g} of {half.largest:.6g}, the largest number of the type"


def _describe_loss(magnitude: NDArray[np.float64], counts: NDArray[np.int64], half: FloatInfo) -> str:
    some = magnitude > 0
    magnitude, counts = magnitude[some], counts[some]
    small = magnitude < half.smallest
    share = counts[small].sum() / max(counts.sum(), 1)
    if share <= 0.5:
        return ""
    # Below the smallest normal number the step is constant; above it, noise is 70 dB down.
    step = half.smallest * 2.0**-10
    signal = float((counts * magnitude**2).sum())
    noise = float((counts[small] * np.minimum(step**2 / 12, magnitude[small] ** 2)).sum())
    if 10 * np.log10(signal / noise) >= FEWEST_DB:
        return ""
    return f"{share:.0%} of its values are below {half.smallest:.2g}, the smallest normal number of the type"

"""Whether numbers fit in a half type: neither beyond its range nor, for the most part, below its steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.float_types import FloatInfo

MARGIN = 2.0
"""Other data than that observed may go this much further."""
STANDS_FOR_INFINITY = 1e8
"""Attention masks are written with -1e9, -3.4e38 and the like; nothing else is that far on one side alone."""
FEWEST_DB = 50.0
"""SQNR that a tensor must keep in the half type; an int8 grid leaves about 40 dB of one."""


def unfit(found: TensorStatistics, half: FloatInfo) -> str:
    """Return why the values of `found` do not fit in `half`, with their range; empty when they do."""
    real = _real(found)
    low, high = found.edges()
    far = float(np.maximum(np.abs(low), np.abs(high))[real].max(initial=0.0))
    if far * MARGIN > half.largest:
        return f"its values go from {found.rmin:.6g} to {found.rmax:.6g}, {_limit(far, half)}"
    return _lost(np.abs((low + high) / 2)[real], found.counts[real], half)


def masks(found: TensorStatistics, half: FloatInfo) -> bool:
    """Tell whether `found` has numbers that stand for minus infinity and are beyond `half`."""
    return not _real(found).all() and -found.rmin > half.largest


def smallest_magnitude(found: TensorStatistics | None) -> float:
    """Return the least |x| above 0, within a bin of the histogram; infinity where nothing was seen."""
    if found is None:
        return float("inf")
    low, high = found.edges()
    least = np.minimum(np.abs(low), np.abs(high))
    most = np.maximum(np.abs(low), np.abs(high))
    # The bin at zero holds the smallest numbers of the type: its far end is what it may hold.
    return float(np.where(least > 0, least, most)[most > 0].min(initial=np.inf))


def unfit_constant(values: NDArray[np.float32], half: FloatInfo) -> str:
    """Return why a constant does not fit in `half`; empty when it does."""
    return unfit(TensorStatistics.from_array(values), half)


def _real(found: TensorStatistics) -> NDArray[np.bool_]:
    """Tell for each bin whether it holds numbers, and not what stands for minus infinity."""
    low, high = found.edges()
    kept = np.ones(low.size, bool)
    beyond = high < -STANDS_FOR_INFINITY
    # In a tensor that goes there step by step, or on both sides, the values are meant.
    between = (low < -1e5) & ~beyond
    if beyond.any() and not between.any() and found.rmax <= 1e5:
        kept = ~beyond
    return kept


def _limit(far: float, half: FloatInfo) -> str:
    if far > half.largest:
        return f"beyond {half.largest:.6g}, the largest number of the type"
    return f"within a factor of {MARGIN:g} of {half.largest:.6g}, the largest number of the type"


def _lost(magnitude: NDArray[np.float64], counts: NDArray[np.int64], half: FloatInfo) -> str:
    some = magnitude > 0
    magnitude, counts = magnitude[some], counts[some]
    small = magnitude < half.smallest
    share = counts[small].sum() / max(counts.sum(), 1)
    if share <= 0.5:
        return ""
    # Below the smallest normal number steps stay what they are there; above, noise is 70 dB down.
    step = half.smallest * 2.0**-10
    signal = float((counts * magnitude**2).sum())
    noise = float((counts[small] * np.minimum(step**2 / 12, magnitude[small] ** 2)).sum())
    if 10 * np.log10(signal / noise) >= FEWEST_DB:
        return ""
    return f"{share:.0%} of its values are below {half.smallest:.2g}, the smallest normal number of the type"

"""Unseen: best error for one value more at each end than the samples had."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.best_error import best_error
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec

LARGEST = 8
"""Values at an end whose mean distance from the next one tells how far other data may go."""


def unseen(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the range of `best_error` for the values and one more beyond each end that is not 0.

    The last of n + 1 values in random order is the largest once in n + 1 times, so that n more values have
    one such value in the mean. It lies beyond the largest by the mean distance of the LARGEST values from the
    next, as with an exponential tail (Pickands, 1975). Among many values one more changes nothing. A tensor
    of few values, such as the result of a pool, gets room for other data.
    """
    low, high = statistics.edges()
    over, under = (low >= 0.0) & (statistics.rmax > 0.0), (high <= 0.0) & (statistics.rmin < 0.0)
    ends = [
        np.sign(end)
        * (abs(end) + _mean_excess(np.abs(low[part] + high[part]) / 2.0, statistics.counts[part]))
        for end, part in ((statistics.rmax, over), (statistics.rmin, under))
        if part.any()
    ]
    most = np.finfo(np.float32).max
    added = np.clip(np.asarray(ends, np.float64), -most, most).astype(np.float32)
    return best_error(statistics.merge(TensorStatistics.from_array(added)), spec)


def _mean_excess(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """Return the mean distance of the largest magnitudes from the one behind them, 0 if there is none."""
    order = np.argsort(-values)
    values, before = values[order], np.cumsum(counts[order])
    taken = np.minimum(before, LARGEST) - np.minimum(before - counts[order], LARGEST)
    behind = values[min(int(np.searchsorted(before, LARGEST, side="right")), values.size - 1)]
    return float((taken * (values - behind)).sum() / max(taken.sum(), 1))

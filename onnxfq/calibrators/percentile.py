"""Percentile: the range that leaves out a fixed share of the largest values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.qtypes import QType
from onnxfq.statistics import TensorStatistics

DEFAULT_PERCENTILE = 99.99


def percentile(
    statistics: TensorStatistics, qtype: QType, symmetric: bool, percent: float = DEFAULT_PERCENTILE
) -> tuple[float, float]:
    """Return the range that holds `percent` % of the values, to the bin that the cut falls into.

    symmetric: the cut is on magnitudes (NVIDIA pytorch-quantization's histogram calibrator).
    asymmetric: half of the share is cut at each end.
    """
    if not statistics.counts.size:
        return statistics.rmin, statistics.rmax
    low, high = statistics.edges()
    left_out = (1.0 - percent / 100.0) * float(statistics.counts.sum())
    if symmetric:
        far = np.maximum(-low, high)
        amax = _cut(far, statistics.counts, left_out)
        return max(statistics.rmin, -amax), min(statistics.rmax, amax)
    return -_cut(-low, statistics.counts, left_out / 2.0), _cut(high, statistics.counts, left_out / 2.0)


def _cut(edge: NDArray[np.float64], counts: NDArray[np.int64], left_out: float) -> float:
    """Return the largest edge with at most `left_out` values in the bins beyond it."""
    order = np.argsort(-edge, kind="stable")
    beyond = np.cumsum(counts[order]) - counts[order]
    kept = np.flatnonzero(beyond <= left_out)[-1]
    return float(edge[order][kept])

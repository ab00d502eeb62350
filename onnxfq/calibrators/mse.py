"""MSE: the range whose grid has the least squared error on the observed values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibrators.grid_error import Density, grid_error
from onnxfq.qtypes import QType
from onnxfq.statistics import TensorStatistics

OCTAVES = 7
"""The least range tried is the observed one divided by 2^7: below it an 8-bit grid has no step left."""
STEPS = 8
"""Candidates an octave in the first pass; the second tries as many between the best one's neighbours."""

_Range = tuple[NDArray[np.float64], NDArray[np.float64]]


def mse(statistics: TensorStatistics, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the (rmin, rmax) of least expected squared error.

    Both ends shrink together first; asymmetric ranges are then refined one end at a time until
    neither moves. The full range and each step's start are among the candidates, so no step makes
    it worse and the result is never worse than min-max.
    """
    if not statistics.counts.size:
        return statistics.rmin, statistics.rmax
    density = Density.of(statistics)

    def search(ranges: Callable[[NDArray[np.float64]], _Range], start: float = 1.0) -> float:
        return _search(lambda shrink: grid_error(density, *ranges(shrink), qtype, symmetric), start)

    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    if symmetric:
        amax = statistics.amax * search(lambda f: (-statistics.amax * f, statistics.amax * f))
        return max(low, -amax), min(high, amax)
    left = right = search(lambda f: (low * f, high * f))
    for _ in range(4):
        before = (left, right)
        left = search(lambda f, right=right: (low * f, np.full(f.size, high * right)), left)  # type: ignore[misc]
        right = search(lambda f, left=left: (np.full(f.size, low * left), high * f), right)  # type: ignore[misc]
        if (left, right) == before:
            break
    return low * left, high * right


def _search(error: Callable[[NDArray[np.float64]], NDArray[np.float64]], start: float) -> float:
    """Return the factor of least error: `start`, coarse steps from 1 down, then fine ones around the best."""
    coarse = np.append(np.exp2(np.linspace(0.0, -OCTAVES, OCTAVES * STEPS + 1)), start)
    best = coarse[int(np.argmin(error(coarse)))]
    fine = np.minimum(best * np.exp2(np.linspace(1.0, -1.0, 2 * STEPS + 1) / STEPS), 1.0)
    return float(fine[int(np.argmin(error(fine)))])

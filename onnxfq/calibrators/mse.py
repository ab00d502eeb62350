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
    neither moves. The full range is among the candidates, so the result is never worse than min-max.
    """
    density = Density.of(statistics)

    def search(ranges: Callable[[NDArray[np.float64]], _Range]) -> float:
        return _search(lambda shrink: grid_error(density, *ranges(shrink), qtype, symmetric))

    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    if symmetric:
        amax = statistics.amax * search(lambda f: (-statistics.amax * f, statistics.amax * f))
        return max(low, -amax), min(high, amax)
    factor = search(lambda f: (low * f, high * f))
    rmin, rmax = low * factor, high * factor
    for _ in range(4):
        before = (rmin, rmax)
        rmin = low * search(lambda f, rmax=rmax: (low * f, np.full(f.size, rmax)))  # type: ignore[misc]
        rmax = high * search(lambda f, rmin=rmin: (np.full(f.size, rmin), high * f))  # type: ignore[misc]
        if (rmin, rmax) == before:
            break
    return rmin, rmax


def _search(error: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
    """Return the factor in [2^-OCTAVES, 1] of least error: coarse steps, then fine ones around the best."""
    coarse = np.linspace(0.0, -OCTAVES, OCTAVES * STEPS + 1)
    best = coarse[int(np.argmin(error(np.exp2(coarse))))]
    fine = np.minimum(best + np.linspace(1.0, -1.0, 2 * STEPS + 1) / STEPS, 0.0)
    return float(np.exp2(fine[int(np.argmin(error(np.exp2(fine))))]))

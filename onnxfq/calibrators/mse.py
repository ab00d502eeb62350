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
_Error = Callable[[NDArray[np.float64]], NDArray[np.float64]]

_ALL = np.exp2(np.linspace(0.0, -OCTAVES, OCTAVES * STEPS + 1))
# Refining one end looks an octave around where it is; the middle one is where it is.
_NEAR = np.exp2(np.linspace(1.0, -1.0, 2 * STEPS + 1))


def mse(statistics: TensorStatistics, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the (rmin, rmax) of least expected squared error.

    Both ends shrink together first; asymmetric ranges are then refined one end at a time until
    neither moves. The full range and each step's start are among the candidates, so no step makes
    it worse and the result is never worse than min-max.
    """
    if not statistics.counts.size:
        return statistics.rmin, statistics.rmax
    density = Density.of(statistics)

    def error_of(ranges: Callable[[NDArray[np.float64]], _Range]) -> _Error:
        return lambda shrink: grid_error(density, *ranges(shrink), qtype, symmetric)

    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    if symmetric:
        amax = statistics.amax * _search(
            error_of(lambda f: (-statistics.amax * f, statistics.amax * f)), _ALL
        )
        return max(low, -amax), min(high, amax)
    left = right = _search(error_of(lambda f: (low * f, high * f)), _ALL)
    for _ in range(4):
        before = (left, right)
        fixed = high * right
        left = _search(error_of(lambda f, end=fixed: (low * f, np.full(f.size, end))), left * _NEAR)  # type: ignore[misc]
        fixed = low * left
        right = _search(error_of(lambda f, end=fixed: (np.full(f.size, end), high * f)), right * _NEAR)  # type: ignore[misc]
        if (left, right) == before:
            break
    return low * left, high * right


def _search(error: _Error, coarse: NDArray[np.float64]) -> float:
    """Return the factor of least error, at most 1: of `coarse` ones, then of finer ones around the best."""
    coarse = np.minimum(coarse, 1.0)
    best = coarse[int(np.argmin(error(coarse)))]
    fine = np.minimum(best * np.exp2(np.linspace(1.0, -1.0, 2 * STEPS + 1) / STEPS), 1.0)
    return float(fine[int(np.argmin(error(fine)))])

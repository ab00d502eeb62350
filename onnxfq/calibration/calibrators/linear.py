"""From the histogram of a float's leading bits to one of equal bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.grid_error import Density

Array = NDArray[np.float64]


def linear_histogram(density: Density, edges: Array) -> Array:
    """Return how many values lie between neighbouring `edges`, those of an observed bin at even distances.

    edges: [bins + 1], ascending, from at most the smallest to at least the largest value. The counts are
    whole: the one value of a wide bin lies somewhere, so that a thin tail has gaps here as in the data.
    """
    return np.asarray(np.diff(np.rint(_cumulative(density.low, density.high, density.counts, edges))))


def magnitude_histogram(density: Density, amax: float, bins: int) -> Array:
    """Return how many magnitudes lie in each of `bins` equal bins from 0 to `amax`."""
    edges = amax * (np.arange(bins + 1) / bins)
    negative = density.low < 0.0
    below = density.select(negative)
    mirrored = Density(-below.high, -below.low, below.counts)
    return linear_histogram(density.select(~negative), edges) + linear_histogram(mirrored, edges)


def _cumulative(low: Array, high: Array, counts: Array, at: Array) -> Array:
    """Return how many values of disjoint ranges [low, high] lie below each point of `at`, the last: all."""
    order = np.argsort(low, kind="stable")
    low, high, total = low[order], high[order], np.cumsum(counts[order])
    if total.size == 0:
        return np.zeros(at.size)
    # The cumulative count climbs linearly inside a range and is level between two; a range of zero
    # width is a step, which interp takes as the upper value at its own abscissa.
    points = np.stack([low, high], axis=1).ravel()
    values = np.stack([total - counts[order], total], axis=1).ravel()
    below = np.interp(at, points, values, left=0.0, right=float(total[-1]))
    below[0], below[-1] = 0.0, total[-1]
    return np.asarray(below)

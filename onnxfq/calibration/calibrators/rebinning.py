"""Conversion of a histogram by leading float bits to equal bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.grid_error import Density

Array = NDArray[np.float64]


def linear_histogram(density: Density, edges: Array) -> Array:
    """Return the number of values between neighbouring `edges`; values of a bin are spread evenly over it.

    Counts are whole numbers: the only value of a wide bin has one place, and a thin tail has gaps as in the
    data.

    Args:
        density: histogram of the values.
        edges: [bins + 1], ascending, from at most the smallest to at least the largest value.
    """
    return np.asarray(np.diff(np.rint(_cumulative(density.low, density.high, density.counts, edges))))


def magnitude_histogram(density: Density, amax: float, bins: int) -> Array:
    """Return the number of magnitudes in each of `bins` equal bins from 0 to `amax`."""
    edges = amax * (np.arange(bins + 1) / bins)
    negative = density.low < 0.0
    below = density.select(negative)
    mirrored = Density(-below.high, -below.low, below.counts)
    return linear_histogram(density.select(~negative), edges) + linear_histogram(mirrored, edges)


def _cumulative(low: Array, high: Array, counts: Array, at: Array) -> Array:
    """Return the number of values of disjoint ranges [low, high] below each point of `at`; the last: all."""
    order = np.argsort(low, kind="stable")
    low, high, total = low[order], high[order], np.cumsum(counts[order])
    if total.size == 0:
        return np.zeros(at.size)
    # The cumulative count rises linearly inside a range and is constant between ranges; a range of zero width
    # is a step, at which interp returns the upper value.
    points = np.stack([low, high], axis=1).ravel()
    values = np.stack([total - counts[order], total], axis=1).ravel()
    below = np.interp(at, points, values, left=0.0, right=float(total[-1]))
    below[0], below[-1] = 0.0, total[-1]
    return np.asarray(below)

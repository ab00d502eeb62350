"""Histogram bins by leading float bits, without a range given in advance.

A bin is the leading 15 bits of a float32: sign, 8 exponent bits, 6 mantissa bits. A value's bin does not
depend on other values, and merging is integer addition: any batching, order or split of the data gives the
same bits. A bin spans at most 1/64 of its value, so its middle is within 1/128 of every value in it;
subnormal bins are as wide as the smallest normal bin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BIN_SHIFT = 17
"""The bin of a float32 is its bits shifted right by this number; `statistics.h` has the same."""
NEGATIVE = 1 << (31 - BIN_SHIFT)
"""First bin of negative values; their magnitude grows with the bin."""
BIN_COUNT = 2 * NEGATIVE

OCTAVE = 64
"""Number of bins of one exponent and sign."""
USUAL_OCTAVES = 64
"""Octaves, of 512, that suffice for the values of most tensors: 32 powers of two of each sign."""


def bin_edges(bins: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (low, high) edges of `bins` in float64, low < high; 0 is in bin 0."""
    magnitude = (bins & (NEGATIVE - 1)).astype(np.uint32)
    near = (magnitude << BIN_SHIFT).view(np.float32).astype(np.float64)
    far = ((magnitude + 1) << BIN_SHIFT).view(np.float32).astype(np.float64)
    negative = bins >= NEGATIVE
    return np.where(negative, -far, near), np.where(negative, -near, far)


def merge_counts(
    keys: NDArray[np.int32], counts: NDArray[np.int64], more: NDArray[np.int32], added: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the sum of two histograms, each given as ascending keys and their counts."""
    merged = np.union1d(keys, more).astype(np.int32)
    total = np.zeros(merged.size, np.int64)
    total[np.searchsorted(merged, keys)] += counts
    total[np.searchsorted(merged, more)] += added
    return merged, total

"""Entropy: range with the least KL divergence of the quantized from the observed distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.grid_error import CHUNK, Density
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec

LINEAR_BINS = 2048
"""Number of equal bins over the observed range, as in NVIDIA's 2017 description of the method."""

Array = NDArray[np.float64]
Bins = NDArray[np.int64]


def entropy(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the range of least Kullback-Leibler divergence.

    Method: S. Migacz, "8-bit Inference with TensorRT", GTC 2017, with the details of NVIDIA's
    pytorch-quantization. The values outside a candidate range are added to its outermost bins (the reference
    P). The bins inside are summed into the levels of the grid and spread back evenly over the occupied bins
    (Q). The candidate with the least KL(P || Q) wins, the widest of equal ones. The bin of zero gets the
    count of the next bin: zero is always on the grid, and a spike of zeros, as after ReLU, would dominate.

    One limit is added: at most one value in 4 * 2^bits may saturate (0.1% for 8 bits). The published method
    favours a cut below nearly all of the data: if only one bin is left inside, P and Q are equal however much
    was cut off.

    Symmetric: on magnitudes, with 2^(bits-1) levels; every bin is tried as the end. Asymmetric: 2^bits levels
    over the range; values of one sign as before, otherwise both ends are searched, from coarse to fine pairs.
    For more than 8 bits the grid is finer than the linear bins, and the full range is returned. The same
    holds for floats: their steps shrink towards zero, a cut gains nothing, and the method's equal levels do
    not apply; NVIDIA also calibrates float8 by the maximum (Model-Optimizer's FP8 configurations;
    Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
    """
    qtype = spec.qtype
    if qtype.is_float or qtype.bits > 8 or statistics.amax == 0.0:
        return statistics.rmin, statistics.rmax
    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    density, most_outside = Density.from_statistics(statistics), 1.0 / (4 << qtype.bits)
    if spec.symmetric or low == 0.0 or high == 0.0:
        counts = magnitude_histogram(density, statistics.amax, LINEAR_BINS)
        levels = 1 << (qtype.bits - 1 if spec.symmetric else qtype.bits)
        amax = statistics.amax * least_divergence(counts, levels, most_outside) / LINEAR_BINS
        return max(low, -amax), min(high, amax)
    width = high / LINEAR_BINS - low / LINEAR_BINS
    below, above = int(np.ceil(-low / width)), int(np.ceil(high / width))
    edges = np.clip(width * np.arange(-below, above + 1), low, high)
    start, end = least_divergent_pair(linear_histogram(density, edges), below, 1 << qtype.bits, most_outside)
    return float(edges[start]), float(edges[end])


def least_divergence(counts: Array, levels: int, most_outside: float) -> int:
    """Return the number of leading bins, from levels to all, with the least KL divergence.

    Args:
        counts: histogram of the magnitudes.
        levels: number of levels of the grid.
        most_outside: largest share of the counts that may lie beyond these bins.
    """
    counts = counts.copy()
    counts[0] = counts[1]
    ends = np.arange(counts.size, min(levels, counts.size) - 1, -1)
    outside = counts.sum() - np.cumsum(counts)[ends - 1]
    ends = ends[_allow_candidates(outside, most_outside * counts.sum())]
    return int(ends[np.argmin(divergences(counts, np.zeros_like(ends), ends, levels))])


def least_divergent_pair(counts: Array, zero: int, levels: int, most_outside: float) -> tuple[int, int]:
    """Return (start, end) of the bins [start, end) with the least KL divergence found.

    The ends are first tried at 33 places per side, then in smaller and smaller steps around the best pair.

    Args:
        counts: histogram of the values.
        zero: bin that begins at 0; there are bins before it.
        levels: number of levels of the grid.
        most_outside: largest share of the counts that may lie outside.
    """
    counts = counts.copy()
    counts[zero] = counts[zero + 1 if zero + 1 < counts.size else zero - 1]
    total = np.concatenate([[0.0], np.cumsum(counts)])
    # An end at an empty bin moves inwards to an occupied bin, which takes the values cut off.
    bins = np.arange(counts.size)
    next_occupied = np.minimum.accumulate(np.where(counts > 0, bins, counts.size)[::-1])[::-1]
    last_occupied = np.maximum.accumulate(np.where(counts > 0, bins, -1)) + 1
    start, end = 0, counts.size
    step = max(zero, counts.size - zero) / 32
    reach = 32
    while True:
        near = step * np.arange(-reach, reach + 1)
        starts = np.clip(np.rint(start + near), 0, zero).astype(np.int64)
        ends = np.clip(np.rint(end + near), zero, counts.size).astype(np.int64)
        starts = np.unique(np.minimum(next_occupied[starts], zero))
        ends = np.unique(np.maximum(last_occupied[ends - 1], zero))
        pairs = np.stack(np.meshgrid(starts, ends, indexing="ij"), axis=-1).reshape(-1, 2)
        pairs = np.vstack([(start, end), pairs[pairs[:, 1] - pairs[:, 0] >= levels]])
        # The widest of equal pairs comes first.
        pairs = pairs[np.argsort(pairs[:, 0] - pairs[:, 1], kind="stable")]
        outside = total[-1] - (total[pairs[:, 1]] - total[pairs[:, 0]])
        pairs = pairs[_allow_candidates(outside, most_outside * total[-1])]
        found = divergences(counts, pairs[:, 0], pairs[:, 1], levels)
        start, end = map(int, pairs[np.argmin(found)])
        if step <= 1.0:
            return start, end
        step, reach = max(step / 4, 1.0), 6


def _allow_candidates(outside: Array, most: float) -> NDArray[np.bool_]:
    """Tell which candidates leave few enough values outside; the full range always qualifies."""
    # Sums of counts in a different order differ in the last bits.
    return np.asarray(outside <= most * (1.0 + 1e-12))


def divergences(counts: Array, starts: Bins, ends: Bins, levels: int) -> Array:
    """Return KL(P || Q), as in `entropy`, of each candidate range of bins [start, end).

    Level k of Q begins at the first bin that begins at or after k / levels of the range. The result is
    infinite if values are added to a bin that Q leaves empty.
    """
    size = max(CHUNK // levels, 1)
    sums = [np.concatenate([[0.0], np.cumsum(one)]) for one in (counts, counts > 0, _xlogx(counts))]
    parts = [slice(at, at + size) for at in range(0, starts.size, size)]
    found = [_divergences(counts, sums, starts[part], ends[part], levels) for part in parts]
    return np.concatenate(found) if found else np.zeros(0)


def _divergences(counts: Array, sums: list[Array], starts: Bins, ends: Bins, levels: int) -> Array:
    total, occupied, information = sums
    # Level edges of every candidate at once: [candidates, levels + 1].
    widths, steps = (starts - ends).astype(np.int32), np.arange(levels + 1, dtype=np.int32)
    edges = starts[:, None] - widths[:, None] * steps // levels  # 32 bits divide in half of the time of 64
    reached = total[edges]
    mass = reached[:, 1:] - reached[:, :-1]
    reached = occupied[edges]
    support = reached[:, 1:] - reached[:, :-1]
    inside = total[ends] - total[starts]
    below, above = total[starts], total[-1] - total[ends]
    first, last = counts[starts], counts[ends - 1]
    # sum p log p with the values outside added to the outermost bins of P.
    reference = information[ends] - information[starts]
    reference += _xlogx(first + below) - _xlogx(first) + _xlogx(last + above) - _xlogx(last)
    with np.errstate(divide="ignore", invalid="ignore"):
        # sum p log q: each level's mass spread evenly over its occupied bins; values outside have the q of
        # the outermost bins.
        level_log = mass / support
        np.log(level_log, level_log)
        level_log[mass <= 0] = 0.0
        cross = (mass * level_log).sum(axis=1) + below * level_log[:, 0] + above * level_log[:, -1]
        # P sums to the total, Q to the inside: normalise both.
        divergence = (reference - cross) / total[-1] - np.log(total[-1]) + np.log(inside)
    impossible = (inside == 0) | ((below > 0) & (first == 0)) | ((above > 0) & (last == 0))
    return np.asarray(np.where(impossible, np.inf, divergence))


def _xlogx(x: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(x > 0, x * np.log(x), 0.0))


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

"""Entropy: the range whose quantized distribution diverges least from the observed one (KL)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibrators.grid_error import Density
from onnxfq.qtypes import QType
from onnxfq.statistics import TensorStatistics

LINEAR_BINS = 2048
"""Equal bins from 0 to the largest magnitude, as in NVIDIA's 2017 description of the method."""


def entropy(statistics: TensorStatistics, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the range of least Kullback-Leibler divergence.

    Method: S. Migacz, "8-bit Inference with TensorRT", GTC 2017. The values outside a candidate
    range are put into its last bin (the reference P); the bins inside are summed into as many levels
    as the grid has and spread back evenly over the occupied ones (Q); the candidate with the least
    KL(P || Q) wins. The first bin is given the second one's count: zero is always on the grid, and a
    spike of zeros, as after ReLU, would drown the rest.

    One limit is added: at most one value in 4 * 2^bits may saturate (0.1 % for 8 bits). As published,
    the method likes a cut below nearly all of the data: where only one bin is left inside, P and Q are
    equal however much was cut off.

    symmetric: on magnitudes, with 2^(bits-1) levels. asymmetric: both ends shrink by one factor, on
    values folded so that each side's limit is 1, with 2^bits levels over both sides.
    Wider than 8 bits the grid is finer than the linear bins and the full range is returned. So it is for
    floats: their steps shrink towards zero with the values, a cut gains nothing there, and the method's
    equal levels are none of theirs; NVIDIA too calibrates float8 by the maximum (Model-Optimizer's FP8
    configurations; Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
    """
    if qtype.is_float or qtype.bits > 8 or statistics.amax == 0.0:
        return statistics.rmin, statistics.rmax
    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    limit = (max(-low, high),) * 2 if symmetric else (-low or 1.0, high or 1.0)
    counts = _linear_histogram(Density.of(statistics), limit)
    one_sided = symmetric or low == 0.0 or high == 0.0
    levels = 1 << (qtype.bits if not symmetric and one_sided else qtype.bits - 1)
    shrink = least_divergence(counts, levels, 1.0 / (4 << qtype.bits)) / LINEAR_BINS
    if symmetric:
        return -limit[0] * shrink, limit[0] * shrink
    return low * shrink, high * shrink


def _linear_histogram(density: Density, limit: tuple[float, float]) -> NDArray[np.float64]:
    """Spread the density over LINEAR_BINS equal bins of |x| / limit of x's side, from 0 to 1."""
    counts = np.zeros(LINEAR_BINS)
    edges = np.arange(LINEAR_BINS + 1) / LINEAR_BINS
    for sign, side in ((-1.0, limit[0]), (1.0, limit[1])):
        mine = (density.low < 0.0) if sign < 0 else (density.low >= 0.0)
        a = np.abs(density.low[mine]) / side
        b = np.abs(density.high[mine]) / side
        counts += np.diff(_cumulative(np.minimum(a, b), np.maximum(a, b), density.counts[mine], edges))
    return counts


def _cumulative(
    low: NDArray[np.float64], high: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how many values of disjoint ranges [low, high] lie below each point of `at`."""
    order = np.argsort(low, kind="stable")
    low, high, total = low[order], high[order], np.cumsum(counts[order])
    if total.size == 0:
        return np.zeros(at.size)
    # The cumulative count climbs linearly inside a range and is level between two; a range of zero
    # width is a step, which interp takes as the upper value at its own abscissa.
    points = np.stack([low, high], axis=1).ravel()
    values = np.stack([total - counts[order], total], axis=1).ravel()
    below = np.interp(at, points, values, left=0.0, right=float(total[-1]))
    below[-1] = total[-1]
    return below


def least_divergence(counts: NDArray[np.float64], levels: int, most_outside: float) -> int:
    """Return how many of the leading bins make the range of least KL divergence, from levels to all.

    most_outside: the largest share of the counts that may lie beyond them.
    """
    counts = counts.copy()
    counts[0] = counts[1]
    candidates = np.arange(min(levels, counts.size), counts.size + 1)
    total = np.concatenate([[0.0], np.cumsum(counts)])
    occupied = np.concatenate([[0.0], np.cumsum(counts > 0)])
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.where(counts > 0, counts * np.log(counts), 0.0)
    self_information = np.concatenate([[0.0], np.cumsum(information)])
    # Level edges of every candidate at once: [candidates, levels + 1].
    edges = np.rint(candidates[:, None] * (np.arange(levels + 1) / levels)).astype(np.int64)
    mass = np.diff(total[edges], axis=1)
    support = np.diff(occupied[edges], axis=1)
    outside = total[-1] - total[candidates]
    last = counts[candidates - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        # sum p log p with the outliers added to the last bin of P.
        reference = (
            self_information[candidates]
            - np.where(last > 0, last * np.log(last), 0.0)
            + np.where(last + outside > 0, (last + outside) * np.log(last + outside), 0.0)
        )
        # sum p log q: each level's mass spread evenly over its occupied bins; the outliers use the last's q.
        level_log = np.where(mass > 0, np.log(mass / support), 0.0)
        cross = (mass * level_log).sum(axis=1) + outside * level_log[:, -1]
        inside = total[candidates]
        # P sums to the total, Q to the inside: normalise both.
        divergence = (reference - cross) / total[-1] - np.log(total[-1]) + np.log(inside)
    # Outliers on a bin that Q leaves empty: infinitely unlike.
    divergence = np.where(
        (inside == 0) | ((outside > 0) & (last == 0)) | (outside > most_outside * total[-1]),
        np.inf,
        divergence,
    )
    return int(candidates[int(np.argmin(divergence))])

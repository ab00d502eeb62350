"""Entropy: the published method, written here once more as plain loops, agrees to the bin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxfq.calibration.calibrators.entropy import (
    LINEAR_BINS,
    divergences,
    entropy,
    least_divergence,
    least_divergent_pair,
)
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec

INT8 = QuantSpec(qtype="int8")


def divergence(bins, start, end, levels):
    """KL(P || Q) of the bins [start, end), as S. Migacz describes it (GTC 2017), bin by bin.

    Reference P: the bins, all counts before them on the first and all after them on the last. Candidate Q:
    the same bins without those, summed into `levels` equal runs of bins (bin i of n is in run
    floor(i * levels / n)) and spread evenly over the run's occupied bins. Both are normalised.
    """
    bins = list(map(float, bins))
    p = bins[start:end]
    p[0] += sum(bins[:start])
    p[-1] += sum(bins[end:])
    runs = {}
    for at in range(end - start):
        runs.setdefault(at * levels // (end - start), []).append(start + at)
    q = [0.0] * (end - start)
    for run in runs.values():
        occupied = [at for at in run if bins[at] > 0]
        for at in occupied:
            q[at - start] = sum(bins[i] for i in run) / len(occupied)
    sum_p, sum_q = sum(p), sum(q)
    if sum_q == 0 or any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return math.inf
    return sum(a / sum_p * math.log((a / sum_p) / (b / sum_q)) for a, b in zip(p, q, strict=True) if a > 0)


def one_sided(histogram, levels, most_outside):
    """{end: divergence} of every range from 0, the first bin with the second one's count."""
    bins = [float(histogram[1]), *map(float, histogram[1:])]
    return {
        end: divergence(bins, 0, end, levels)
        if sum(bins[end:]) <= most_outside * sum(bins) * (1 + 1e-12)
        else math.inf
        for end in range(min(levels, len(bins)), len(bins) + 1)
    }


def histograms():
    """Histograms of 256 bins: smooth, heavy-tailed, gappy, with outliers, with a spike at zero."""
    rng = np.random.default_rng(5)
    drawn = {
        "normal": np.abs(rng.normal(size=20_000)),
        "laplace": np.abs(rng.laplace(size=20_000)),
        "cauchy": np.minimum(np.abs(rng.standard_cauchy(size=20_000)), 40),
        "uniform": rng.uniform(size=20_000),
        "few values": np.abs(rng.normal(size=60)),
        "outliers": np.concatenate([np.abs(rng.normal(size=20_000)), [30.0, 31.0]]),
        "spike of zeros": np.concatenate([np.zeros(50_000), np.abs(rng.normal(size=9_000))]),
        "bimodal": np.abs(np.concatenate([rng.normal(size=9000), rng.normal(6, 0.2, size=900)])),
        "coarse": rng.integers(0, 12, size=900) / 12,
    }
    return {name: np.histogram(x, 256, (0, x.max()))[0].astype(float) for name, x in drawn.items()}


HISTOGRAMS = histograms()


@pytest.mark.parametrize("most_outside", [1.0, 0.001], ids=["as published", "capped"])
@pytest.mark.parametrize("levels", [8, 16, 128], ids=lambda n: f"{n} levels")
@pytest.mark.parametrize("name", HISTOGRAMS)
def test_least_divergence_is_the_loops(name, levels, most_outside):
    """The closed form over all candidates at once picks the bin that the plain loops pick."""
    loops = one_sided(HISTOGRAMS[name], levels, most_outside)
    chosen = least_divergence(HISTOGRAMS[name], levels, most_outside)
    least = min(loops.values())
    widest = max(c for c, value in loops.items() if value == least)
    if chosen != widest:  # a tie up to the rounding of sums of logarithms
        assert loops[chosen] == pytest.approx(least, abs=1e-12)
        assert least < 1e-12


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_pairs_are_the_loops(name):
    """Both ends cut: the closed form is the loops, for every start and some ends."""
    bins = HISTOGRAMS[name].copy()
    pairs = [(start, end) for start in range(0, 100, 7) for end in range(120, 257, 17)]
    starts, ends = (np.asarray(column, np.int64) for column in zip(*pairs, strict=True))
    closed = divergences(bins, starts, ends, 16)
    loops = [divergence(bins, start, end, 16) for start, end in pairs]
    np.testing.assert_allclose(closed, loops, atol=1e-10)  # sums of logarithms in another order


def two_sided(seed):
    """A histogram of 160 bins with 0 at bin 60, and tails of different weight."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(0, 0.2, 30_000), rng.laplace(0, 0.5, 2000) + 0.2])
    return np.histogram(np.clip(x, -1.2, 2.0), 160, (-1.2, 2.0))[0].astype(float)


@pytest.mark.parametrize("seed", range(6))
def test_the_pair_found_is_close_to_the_best_of_all(seed):
    """The search in steps against every pair: at most 3% above the least divergence."""
    counts, zero, levels, most_outside = two_sided(seed), 60, 16, 1 / 64
    start, end = least_divergent_pair(counts, zero, levels, most_outside)
    counts[zero] = counts[zero + 1]
    total = counts.sum()
    pairs = [(a, b) for a in range(zero + 1) for b in range(zero, 161) if b - a >= levels]
    inside = [(a, b) for a, b in pairs if total - counts[a:b].sum() <= most_outside * total]
    every = divergences(counts, *(np.asarray(c, np.int64) for c in zip(*inside, strict=True)), levels)
    chosen = divergences(counts, np.asarray([start]), np.asarray([end]), levels)[0]
    assert (start, end) in inside
    # The divergence jumps from bin to bin, so steps may miss the very least.
    assert chosen <= 1.03 * every.min()
    assert chosen < divergences(counts, np.asarray([0]), np.asarray([160]), levels)[0]


def test_fewer_bins_than_levels():
    """With no candidate to choose from, all bins are taken."""
    assert least_divergence(np.asarray([1.0, 2.0, 3.0]), 8, 1.0) == 3


def test_outliers_on_an_empty_bin_are_never_chosen():
    """A cut whose last bin is empty would put mass where Q has none: infinitely unlike."""
    counts = np.ones(64)
    counts[20:60] = 0
    assert not 20 < least_divergence(counts, 8, 1.0) <= 60
    counts[:] = 0
    counts[[1, 63]] = 5.0, 1.0
    assert least_divergence(counts, 8, 1.0) == 64


def spread(stats, below, above):
    """Counts in LINEAR_BINS of |x| / limit, each observed bin spread evenly between its edges, by loops.

    below, above: the limits of negative and of other values. The running sum over each sign is rounded.
    """
    return sum(
        np.diff(np.rint(np.round(np.cumsum([0.0, *spread_sign(stats, negative, limit)]), 9)))
        for negative, limit in ((True, below), (False, above))
    )


def spread_sign(stats, negative, limit):
    """Fractions of counts of the values of one sign."""
    counts = [0.0] * LINEAR_BINS
    for low, high, count in zip(*stats.edges(), stats.counts, strict=True):
        if (low < 0) != negative:
            continue
        start, end = sorted((abs(low) / limit * LINEAR_BINS, abs(high) / limit * LINEAR_BINS))
        if start == end:  # one value
            counts[max(math.ceil(start) - 1, 0)] += count
            continue
        for at in range(int(start), min(math.ceil(end), LINEAR_BINS)):
            counts[at] += count * (min(end, at + 1) - max(start, at)) / (end - start)
    return counts


def drawn(kind):
    """Values of one distribution as float32."""
    rng = np.random.default_rng(8)
    x = {
        "normal": rng.normal(size=20_000),
        "laplace": rng.laplace(size=20_000) + 0.4,
        "relu": np.maximum(rng.normal(size=20_000), 0),
        "negative": -rng.gamma(2.0, size=20_000),
        "outlier": np.append(rng.normal(size=20_000), 60.0),
        "integers": rng.integers(-9, 10, size=500),
    }[kind]
    return x.astype(np.float32)


KINDS = ["normal", "laplace", "relu", "negative", "outlier", "integers"]


@pytest.mark.parametrize("name", ["int4", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_symmetric_is_the_method_on_magnitudes(kind, name):
    """2^(bits - 1) levels over |x|: the limit is the one that the histogram spread by loops gives."""
    stats = TensorStatistics.from_array(drawn(kind))
    bits = QTYPES[name].bits
    wanted = least_divergence(spread(stats, stats.amax, stats.amax), 1 << (bits - 1), 0.25 / 2**bits)
    limits = entropy(stats, QuantSpec(qtype=name))
    amax = stats.amax * wanted / LINEAR_BINS
    assert max(map(abs, limits)) == pytest.approx(amax, rel=1e-12)  # to the bin
    assert min(stats.rmin, 0) <= limits[0] <= 0 <= limits[1] <= max(stats.rmax, 0)


@pytest.mark.parametrize("name", ["uint4", "uint8", "int8"])
@pytest.mark.parametrize("kind", ["relu", "negative"])
def test_values_of_one_sign_have_all_levels(kind, name):
    """Asymmetric with values on one side of 0: the method on magnitudes with 2^bits levels."""
    stats = TensorStatistics.from_array(drawn(kind))
    bits = QTYPES[name].bits
    wanted = least_divergence(spread(stats, stats.amax, stats.amax), 1 << bits, 0.25 / 2**bits)
    limits = entropy(stats, QuantSpec(qtype=name, symmetric=False))
    assert max(map(abs, limits)) == pytest.approx(stats.amax * wanted / LINEAR_BINS, rel=1e-12)
    assert 0.0 in limits


@pytest.mark.parametrize("name", ["uint4", "int8"])
@pytest.mark.parametrize("kind", ["normal", "laplace", "outlier", "integers"])
def test_asymmetric_cuts_each_end_by_itself(kind, name):
    """The pair of ends is at most as divergent as the whole range, and an outlier costs its own side only."""
    stats, spec = TensorStatistics.from_array(drawn(kind)), QuantSpec(qtype=name, symmetric=False)
    rmin, rmax = entropy(stats, spec)
    assert stats.rmin <= rmin < 0 < rmax <= stats.rmax
    if kind == "outlier":
        assert rmax < 12 and rmin < -3
    outside = np.mean((drawn(kind) < rmin) | (drawn(kind) > rmax))
    # Values lie evenly in their bins, so a few more or less are cut than was asked for.
    assert outside <= 0.25 / 2**spec.qtype.bits + 1e-3


@pytest.mark.parametrize("name", ["int16", "uint16"])
def test_wide_types_take_the_full_range(name):
    """The grid of 16 bits is finer than the linear bins: there is nothing to choose."""
    x = np.random.default_rng(2).normal(size=99).astype(np.float32)
    stats = TensorStatistics.from_array(x)
    assert entropy(stats, QuantSpec(qtype=name, symmetric=False)) == (x.min(), x.max())


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_a_range_far_from_zero_is_not_cut_off(name):
    """Values that all lie near the largest one stay inside: a cut below them all has no divergence either."""
    x = np.random.default_rng(3).uniform(0.056, 0.84, size=50_000).astype(np.float32)
    saturated = float((x > entropy(TensorStatistics.from_array(x), QuantSpec(qtype=name))[1]).mean())
    assert saturated <= 0.25 / 2 ** QTYPES[name].bits + 1e-3  # one linear bin holds 1 / 2048

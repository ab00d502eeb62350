"""Entropy: the published method, written here once more as plain loops, agrees to the bin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxfq.calibrators.entropy import LINEAR_BINS, entropy, least_divergence
from onnxfq.qtypes import QTYPES
from onnxfq.statistics import TensorStatistics

INT8 = QTYPES["int8"]


def divergences(histogram, levels, most_outside):
    """KL(P || Q) of every candidate, as S. Migacz describes it (GTC 2017), bin by bin.

    The first bin is given the second one's count. Reference P: the leading bins, all later counts on
    the last of them. Candidate Q: the same bins without the later counts, summed into `levels` equal
    runs of bins (run k ends at bin k * candidate / levels, to the nearest) and spread evenly over the
    run's occupied bins. Both are normalised. No candidate leaves out more than the share `most_outside`.
    """
    bins = [float(histogram[1]), *map(float, histogram[1:])]
    result = {}
    for candidate in range(min(levels, len(bins)), len(bins) + 1):
        p = bins[:candidate]
        if sum(bins[candidate:]) > most_outside * sum(bins):
            result[candidate] = math.inf
            continue
        p[-1] += sum(bins[candidate:])
        q = [0.0] * candidate
        ends = [round(k * candidate / levels) for k in range(levels + 1)]
        for start, end in zip(ends, ends[1:], strict=False):
            occupied = [i for i in range(start, end) if bins[i] > 0]
            for i in occupied:
                q[i] = sum(bins[start:end]) / len(occupied)
        sum_p, sum_q = sum(p), sum(q)
        if sum_q == 0 or any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
            result[candidate] = math.inf
            continue
        result[candidate] = sum(
            a / sum_p * math.log((a / sum_p) / (b / sum_q)) for a, b in zip(p, q, strict=True) if a > 0
        )
    return result


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
    loops = divergences(HISTOGRAMS[name], levels, most_outside)
    chosen = least_divergence(HISTOGRAMS[name], levels, most_outside)
    least = min(loops.values())
    first = min(c for c, value in loops.items() if value == least)
    if chosen != first:  # a tie up to the rounding of sums of logarithms
        assert loops[chosen] == pytest.approx(least, abs=1e-12)
        assert least < 1e-12
    assert chosen in loops


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

    below, above: the limits of negative and of other values.
    """
    counts = [0.0] * LINEAR_BINS
    for low, high, count in zip(*stats.edges(), stats.counts, strict=True):
        limit = below if low < 0 else above
        start, end = sorted((abs(low) / limit * LINEAR_BINS, abs(high) / limit * LINEAR_BINS))
        if start == end:  # one value
            counts[max(math.ceil(start) - 1, 0)] += count
            continue
        for at in range(int(start), min(math.ceil(end), LINEAR_BINS)):
            counts[at] += count * (min(end, at + 1) - max(start, at)) / (end - start)
    return np.asarray(counts)


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
    rmin, rmax = entropy(stats, QTYPES[name], True)
    assert rmin == -rmax
    assert rmax == pytest.approx(stats.amax * wanted / LINEAR_BINS, rel=1e-12)  # to the bin


@pytest.mark.parametrize("name", ["uint4", "uint8", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_asymmetric_is_the_method_on_folded_values(kind, name):
    """All levels for one-sided values, half of them a side for two-sided ones, both shrunk by one factor."""
    stats = TensorStatistics.from_array(drawn(kind))
    low, high = min(stats.rmin, 0.0), max(stats.rmax, 0.0)
    levels = (1 << QTYPES[name].bits) // (2 if low and high else 1)
    most_outside = 0.25 / 2 ** QTYPES[name].bits
    shrink = least_divergence(spread(stats, -low or 1.0, high or 1.0), levels, most_outside) / LINEAR_BINS
    assert entropy(stats, QTYPES[name], False) == pytest.approx((low * shrink, high * shrink), rel=1e-12)


def test_spread_is_close_to_the_values_own_histogram():
    """The linear histogram is that of the values themselves, but for their places inside a bin."""
    stats = TensorStatistics.from_array(drawn("normal"))
    exact = np.histogram(np.abs(drawn("normal")), LINEAR_BINS, (0, stats.amax))[0]
    ours = spread(stats, stats.amax, stats.amax)
    # A cumulative count is off by at most what one bin of either sign holds.
    assert np.abs(np.cumsum(ours) - np.cumsum(exact)).max() <= 2 * stats.counts.max()


def test_zeros_do_not_count():
    """A spike of zeros, as after ReLU, does not change the range."""
    x = np.abs(np.random.default_rng(9).normal(size=5000)).astype(np.float32)
    with_zeros = np.append(x, np.zeros(50_000, np.float32))
    ranges = [entropy(TensorStatistics.from_array(v), INT8, True) for v in (x, with_zeros)]
    assert ranges[0] == pytest.approx(ranges[1], rel=0.02)  # a bin at zero is cut off at the first value


@pytest.mark.parametrize(
    ("qtype", "symmetric"), [(INT8, True), (QTYPES["uint4"], False)], ids=["sym", "asym"]
)
def test_far_outliers_are_cut(qtype, symmetric):
    """One value far away does not make the grid coarse for the rest, signed or one-sided."""
    x = drawn("outlier") if symmetric else np.abs(drawn("outlier"))
    assert entropy(TensorStatistics.from_array(x), qtype, symmetric)[1] < 12


@pytest.mark.parametrize("name", ["int16", "uint16"])
def test_wide_types_take_the_full_range(name):
    """The grid of 16 bits is finer than the linear bins: there is nothing to choose."""
    x = np.random.default_rng(2).normal(size=99).astype(np.float32)
    stats = TensorStatistics.from_array(x)
    assert entropy(stats, QTYPES[name], False) == (x.min(), x.max())


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_a_range_far_from_zero_is_not_cut_off(name):
    """Values that all lie near the largest one stay inside: a cut below them all has no divergence either."""
    x = np.random.default_rng(3).uniform(0.056, 0.84, size=50_000).astype(np.float32)
    saturated = float((x > entropy(TensorStatistics.from_array(x), QTYPES[name], True)[1]).mean())
    assert saturated <= 0.25 / 2 ** QTYPES[name].bits + 1e-3  # what one linear bin holds: 1 / 2048

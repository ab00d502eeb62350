"""Intervals against repeated measurements, NumPy's jackknife, published quantiles and binomials by hand."""

from __future__ import annotations

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from onnxfq.numerics.intervals import COVERAGE, interval_db, largest_drop, most_gain, t_quantile

DRAWS = 1500


def share_that_holds(count: int, spread: float, seed: int = 0) -> tuple[float, float]:
    """The share of intervals of lognormal noise that hold the figure of all, and that are not above it."""
    rng = np.random.default_rng(seed)
    signals = np.exp(0.3 * rng.normal(size=(DRAWS, count)))
    noises = np.exp(spread * rng.normal(size=(DRAWS, count)))
    truth_db = 10 / math.log(10) * (0.3**2 - spread**2) / 2
    ends = np.asarray([interval_db(*pair) for pair in zip(signals, noises, strict=True)])
    return float(np.mean((ends[:, 0] <= truth_db) & (truth_db <= ends[:, 1]))), float(
        np.mean(ends[:, 0] <= truth_db)
    )


@pytest.mark.parametrize("count", [8, 16, 64])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0, 3.0])
def test_nine_of_ten_intervals_hold_the_figure_of_all_samples(count: int, spread: float) -> None:
    """Also where the worst percent of the samples makes 76% of the noise, as it does at a spread of 3."""
    holds, below = share_that_holds(count, spread)
    # The lognormal form is asymptotic: 8 samples of heavy noise hold 85%. A wrong one held 25%.
    assert holds > COVERAGE - 0.06 and below > COVERAGE - 0.06


@pytest.mark.parametrize("count", [8, 64])
def test_noise_that_is_not_lognormal(count: int) -> None:
    """Gamma noise in proportion to the signal, one sample in five without: repeated measurements agree."""
    rng = np.random.default_rng(1)
    signals = rng.gamma(4.0, 1.0, (DRAWS, count))
    noises = signals * rng.gamma(2.0, 0.005, signals.shape) * (rng.random(signals.shape) < 0.8)
    truth_db = 10 * math.log10(1 / 0.008)
    ends = [interval_db(*pair) for pair in zip(signals, noises, strict=True)]
    assert np.mean([low <= truth_db <= high for low, high in ends]) > COVERAGE - 0.05


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0, 3.0])
def test_few_gains_are_sure_by_chance(spread: float) -> None:
    """Two candidates of equal noise: at most one in twenty of 16 pairs says that one is better, near it."""
    common, *own = np.random.default_rng(3).normal(size=(3, DRAWS, 16))
    pairs = np.exp(spread * (np.sqrt(0.5) * common + np.sqrt(0.5) * np.asarray(own)))
    sure = [interval_db(*pair)[0] > 0 for pair in pairs.swapaxes(0, 1)]
    assert np.mean(sure) < (1 - COVERAGE) / 2 + 0.03


@pytest.mark.whole
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_most_gain_by_chance_in_one_of_twenty(spread: float) -> None:
    """Equal candidates pass so often; a common gain of 1.1 dB shows at any spread, in few intervals."""
    rng = np.random.default_rng(4)
    before = np.exp(spread * rng.normal(size=(DRAWS, 16)))
    other = np.exp(0.5 * rng.normal(size=before.shape))
    assert np.mean([most_gain(*pair) for pair in zip(before, before * other, strict=True)]) < 0.06
    pairs = [*zip(before, before * other * math.exp(-0.25), strict=True)]
    assert np.mean([most_gain(*pair) for pair in pairs]) > 0.4
    assert np.mean([interval_db(*pair)[0] > 0.0 for pair in pairs]) < 0.25


@pytest.mark.parametrize("count", [4, 5, 9, 12])
def test_ranks_have_the_exact_distribution(count: int) -> None:
    """The level is the share of all signs whose sum of ranks is as large, counted one by one."""
    rng, found = np.random.default_rng(count), set()
    signs = np.asarray([*itertools.product([0, 1], repeat=count)])
    for mean in np.linspace(0.0, 2.0, 60):
        before, after = np.exp(rng.normal((mean, 0.0), size=(count, 2))).T
        gains, spreads = np.log(before / after), np.log([before, after]).var(axis=1, ddof=1)
        ranks = 1 + np.abs(gains).argsort().argsort()
        level = np.mean(signs @ ranks >= ranks @ (gains > 0))
        is_less = gains.mean() + (spreads[0] - spreads[1]) / 2 > 0
        assert most_gain(before, after) == (is_less and level <= (1 - COVERAGE) / 2)
        found.add(most_gain(before, after))
    assert found == ({False} if count < 5 else {False, True})


def test_most_gain_but_the_loud_lose() -> None:
    """A gain of 15 of 16 samples is none where the mean loses; the order of samples decides nothing."""
    before = np.exp(np.linspace(-3.0, 3.0, 16))
    assert most_gain(before, 0.9 * before) and not most_gain(before, before)
    loud = before * np.r_[np.full(15, 0.95), 40.0]
    assert not most_gain(before, loud)
    assert most_gain(before[::-1], 0.9 * before[::-1])
    assert not most_gain([1.0] * 9, [0.5] * 8 + [math.inf]) and not most_gain([], [])


def test_alike_samples_have_the_interval_of_a_jackknife() -> None:
    """NumPy's jackknife over the samples left out gives the standard error, to first order."""
    rng = np.random.default_rng(2)
    signals, noises = rng.gamma(50.0, 1.0, (2, 200))
    left_out = [10 * np.log10((values.sum() - values) / 199) for values in (signals, noises)]
    error = math.sqrt(199 * np.var(left_out[0] - left_out[1]))
    low, high = interval_db(signals, noises)
    assert high - low == pytest.approx(2 * 1.6525 * error, rel=0.05)  # Student's t, 199 degrees, 95%


@hypothesis.given(
    powers=st.lists(st.tuples(*[st.floats(1e-6, 1e6)] * 2), min_size=2, max_size=9),
    scale=st.floats(1e-9, 1e9),
    random=st.randoms(use_true_random=False),
)
def test_the_order_and_the_unit_decide_nothing(powers, scale, random) -> None:
    """A common factor of the signals moves both ends; the ratio itself is between them."""
    signals, noises = map(np.asarray, zip(*powers, strict=True))
    low, high = interval_db(signals, noises)
    ratio_db = 10 * math.log10(signals.sum() / noises.sum())
    assert low - 1e-6 <= ratio_db <= high + 1e-6
    random.shuffle(powers)
    signals, noises = map(np.asarray, zip(*powers, strict=True))
    assert interval_db(signals * scale, noises) == pytest.approx(
        [end + 10 * math.log10(scale) for end in (low, high)], abs=1e-5
    )


@pytest.mark.parametrize(
    "signals, noises",
    [
        ([], []),
        ([1.0], [0.5]),
        ([1.0, 2.0], [0.0, 0.0]),
        ([0.0, 0.0], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, math.inf]),
        ([1.0, 1.0], [1.0, math.nan]),
    ],
)
def test_what_has_no_interval(signals: list[float], noises: list[float]) -> None:
    """One sample, no noise, no signal, infinity and NaN tell none."""
    assert interval_db(signals, noises) is None


def test_noise_in_proportion_is_known() -> None:
    """Every sample has the ratio, and so has their sum."""
    assert interval_db([1.0, 2.0, 5.0], [0.1, 0.2, 0.5]) == pytest.approx([10.0, 10.0])


@pytest.mark.parametrize(
    "freedom, quantile", [(1, 6.314), (2, 2.920), (3, 2.353), (5, 2.015), (10, 1.812), (30, 1.697)]
)
def test_quantiles_of_t(freedom: int, quantile: float) -> None:
    """As in printed tables."""
    assert t_quantile(0.95, freedom) == pytest.approx(quantile, abs=0.02)


@pytest.mark.parametrize("worse, better", [(0, 1), (1, 1), (3, 1), (6, 2), (1, 5), (30, 20)])
def test_the_largest_drop_is_clopper_and_pearsons(worse: int, better: int) -> None:
    """At its end, so few worse rows or fewer have the probability that a side misses."""
    total = worse + better
    share = (largest_drop(worse, better) / total + 1) / 2
    tail = sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(worse + 1))
    assert tail == pytest.approx((1 - COVERAGE) / 2, rel=1e-6)


def test_models_that_never_differ_have_no_drop() -> None:
    """And where one is only worse, the drop itself is the largest."""
    assert (largest_drop(0, 0), largest_drop(3, 0)) == (0, 3)

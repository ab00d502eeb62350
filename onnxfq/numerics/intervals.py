"""Intervals of an SQNR over some samples, as an estimate of that over all, and of a drop of top-1.

`most_gain` tells what they cannot: a gain on most samples, where few of them make nearly all of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

COVERAGE = 0.9
"""Share of repeated measurements whose interval holds the figure of all samples; half miss at each end."""

NARROW_DB = 2.0
"""Width in dB of an interval below which more samples are not worth their runs."""

TINY = 1e-6
"""Power relative to the mean, below which a sample counts as having this: it adds nothing to the sum."""

_DB = 10.0 / math.log(10.0)


Interval = tuple[float, float]


def interval_db(signals: Sequence[float], noises: Sequence[float]) -> Interval | None:
    """Return the ends in dB of the interval of 10*log10(sum(signals) / sum(noises)), at COVERAGE.

    It spans two intervals. `ratio_interval_db` serves samples that are alike. The other takes the powers for
    lognormal, so that few samples that make most of the noise widen it.
    With means m and variances v of the logarithms, the mean is exp(m + v/2), and its logarithm has the
    variance v/n + v^2/(2(n-1)) (Cox's form in Zhou and Gao, Statistics in Medicine 16, 1997); of a ratio of
    two the covariances c and c^2 are taken off twice.

    Args:
        signals: sum of squares of the reference by sample.
        noises: sum of squared errors by sample.

    Returns None for one sample, without noise or signal, and for infinity and NaN.
    """
    alike = ratio_interval_db(signals, noises)
    if alike is None:
        return None
    reach = _DB * t_quantile(0.5 + COVERAGE / 2, len(signals) - 1)
    ratio, error = _lognormal_ratio(np.asarray(signals, np.float64), np.asarray(noises, np.float64))
    return min(alike[0], _DB * ratio - reach * error), max(alike[1], _DB * ratio + reach * error)


def ratio_interval_db(tops: Sequence[float], bottoms: Sequence[float]) -> Interval | None:
    """Return the ends in dB of the interval of 10*log10(sum(tops) / sum(bottoms)), by the error of a ratio.

    `ratio_reach` has its error, to first order. It is the interval of a gain, for the noises of two
    candidates on the same samples. None as of `interval_db`.
    """
    top, bottom = np.asarray(tops, np.float64), np.asarray(bottoms, np.float64)
    sums = float(top.sum()), float(bottom.sum())
    if top.size < 2 or not all(0.0 < one < math.inf for one in sums):
        return None
    reach = ratio_reach(top / sums[0], bottom / sums[1])
    middle = math.log(sums[0]) - math.log(sums[1])
    return _DB * (middle - reach), _DB * (middle + reach)


def ratio_reach(tops: NDArray[np.float64], bottoms: NDArray[np.float64]) -> float:
    """Return how far sum(tops) / sum(bottoms) of two or more samples may be off to each side, at COVERAGE.

    It has Student's t and the standard error of a ratio of sums (Cochran, Sampling Techniques, 3rd edition,
    1977, equation 2.46, without its correction for a finite population).
    """
    count, total = tops.size, bottoms.sum()
    rest = (tops - tops.sum() / total * bottoms) / total
    return t_quantile(0.5 + COVERAGE / 2, count - 1) * math.sqrt(count / (count - 1) * float(rest @ rest))


def most_gain(before: Sequence[float], after: Sequence[float]) -> bool:
    """Tell whether noises of the same samples are surely less in most of them, and not more in the mean.

    Ranks of the differences of logarithms decide, by the exact one-sided signed-rank test at the level
    (1 - COVERAGE) / 2 (Wilcoxon, Biometrics Bulletin 1, 1945), whatever the spread of the noises is. A sample
    without a difference, or without noise in either, does not count; fewer than five prove nothing. The mean
    of lognormal noises is taken, as in `interval_db`, so that a loss that grows with the noise counts.
    """
    pairs = np.asarray([before, after], np.float64)
    if not np.isfinite(pairs).all():
        return False
    pairs = pairs[:, (pairs > 0.0).all(axis=0) & (pairs[0] != pairs[1])]
    gains = -np.diff(np.log(pairs), axis=0)[0]
    if gains.size < 2 or _lognormal_ratio(*pairs)[0] <= 0.0:
        return False
    ranked = gains[np.lexsort((gains < 0.0, np.abs(gains)))]  # a gain has the lower rank of equal ones
    ranks = 1 + np.flatnonzero(ranked > 0.0)
    ways = np.ones(1)  # share of the signs that give each sum of ranks, if both signs are as likely
    for rank in range(1, gains.size + 1):
        ways = (np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))) / 2
    return bool(ways[int(ranks.sum()) :].sum() <= (1 - COVERAGE) / 2)


def _lognormal_ratio(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> tuple[float, float]:
    """Return the logarithm of the ratio of the means of lognormal powers, and its standard error."""
    logs = np.log([np.maximum(powers, TINY * powers.mean()) for powers in (signal, noise)])
    (s, both), (_, n) = np.cov(logs)
    ratio, count = float(logs[0].mean() - logs[1].mean() + (s - n) / 2), signal.size
    squares = (s + n - 2 * both) / count + (s**2 + n**2 - 2 * both**2) / (2 * (count - 1))
    return ratio, math.sqrt(max(squares, 0.0))


def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t, within 0.02 at the share 0.95.

    One and two degrees of freedom have closed forms; others the expansion of Abramowitz and Stegun, Handbook
    of Mathematical Functions, 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    x = NormalDist().inv_cdf(share)
    terms = (
        x,
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
    )
    return math.fsum(term / float(freedom**power) for power, term in enumerate(terms))


def largest_drop(worse: int, better: int) -> float:
    """Return how many more of the pairs that differ may be worse than better: the upper end, at COVERAGE.

    A pair is a row that one of two models gets right. Given that they differ, the number that is worse is
    binomial, as in McNemar's exact test (Psychometrika 12, 1947), and its share has the upper end of Clopper
    and Pearson (Biometrika 26, 1934). Models that never differ have 0.
    """
    total = worse + better
    low, high = worse / max(total, 1), 1.0
    for _ in range(60 if better else 0):
        middle = (low + high) / 2
        at_most = sum(math.exp(_log_binomial(total, k, middle)) for k in range(worse + 1))
        low, high = (middle, high) if at_most > (1 - COVERAGE) / 2 else (low, middle)
    return total * (2 * high - 1)


def _log_binomial(total: int, count: int, share: float) -> float:
    """Return the logarithm of the probability of `count` among `total`; `share` is above 0 and below 1."""
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    return ways + count * math.log(share) + (total - count) * math.log1p(-share)

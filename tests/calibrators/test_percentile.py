"""Percentile: NumPy's quantile of the data, to the bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibrators import calibrator_by_name
from onnxfq.calibrators.percentile import DEFAULT_PERCENTILE, percentile
from onnxfq.qtypes import QTYPES
from onnxfq.statistics import TensorStatistics

INT8 = QTYPES["int8"]
# Powers of two of the share left out, so that NumPy and we round the same number of values.
PERCENTS = st.sampled_from([50.0, 75.0, 93.75, 100.0 - 100.0 / 1024, 100.0])
VALUES = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e3, 1e3, width=32))


def bin_width(value):
    """How far a bin's edge may lie from a value in it: 1/64, or the first bin's width."""
    return max(abs(value), float(np.finfo(np.float32).tiny)) / 64


@settings(max_examples=80)
@given(VALUES, PERCENTS)
def test_symmetric_is_numpys_quantile_of_magnitudes(x, percent):
    """The larger end is the quantile of |x|, at most one bin above it."""
    rmin, rmax = percentile(TensorStatistics.from_array(x), INT8, True, percent)
    wanted = float(np.quantile(np.abs(x).astype(np.float64), percent / 100, method="inverted_cdf"))
    assert wanted <= max(-rmin, rmax) <= wanted + bin_width(wanted)


@settings(max_examples=80)
@given(VALUES, PERCENTS)
def test_asymmetric_cuts_half_at_each_end(x, percent):
    """Each end is NumPy's quantile of half the share, at most one bin outside it."""
    rmin, rmax = percentile(TensorStatistics.from_array(x), INT8, False, percent)
    share = (1 - percent / 100) / 2
    high = float(np.quantile(x.astype(np.float64), 1 - share, method="inverted_cdf"))
    low = -float(np.quantile(-x.astype(np.float64), 1 - share, method="inverted_cdf"))
    assert high <= rmax <= high + bin_width(high)
    assert low - bin_width(low) <= rmin <= low


@pytest.mark.parametrize("percent", [99.0, 99.9, 99.99, 99.999])
@pytest.mark.parametrize("kind", ["normal", "laplace", "relu"])
def test_usual_percentiles_on_many_values(percent, kind):
    """On 100,000 values the result is within a bin of numpy.percentile."""
    rng = np.random.default_rng(3)
    x = rng.laplace(size=100_000) if kind == "laplace" else rng.normal(size=100_000)
    x = (np.maximum(x, 0) if kind == "relu" else x).astype(np.float32)
    limits = percentile(TensorStatistics.from_array(x), INT8, True, percent)
    # Between two order statistics NumPy's default interpolates; they may lie in neighbouring bins.
    low, high = (np.percentile(np.abs(x), percent, method=m) for m in ("lower", "higher"))
    assert low <= max(map(abs, limits)) <= high + bin_width(high)


@given(VALUES)
def test_one_hundred_is_minmax(x):
    """Nothing left out: the observed range exactly, or its larger end when symmetric."""
    stats = TensorStatistics.from_array(x)
    assert percentile(stats, INT8, False, 100.0) == (stats.rmin, stats.rmax)
    assert max(map(abs, percentile(stats, INT8, True, 100.0))) == stats.amax


@given(VALUES, PERCENTS, st.booleans())
def test_at_least_the_share_is_inside(x, percent, symmetric):
    """The range holds at least `percent` % of the values."""
    rmin, rmax = percentile(TensorStatistics.from_array(x), INT8, symmetric, percent)
    amax = max(-rmin, rmax)
    inside = np.abs(x) <= amax if symmetric else (rmin <= x) & (x <= rmax)
    assert inside.mean() >= percent / 100


def test_name_sets_the_percentile():
    """`percentile:90` is the function with 90, `percentile` has the default."""
    stats = TensorStatistics.from_array(np.random.default_rng(0).normal(size=999).astype(np.float32))
    assert calibrator_by_name("percentile:90")(stats, INT8, True) == percentile(stats, INT8, True, 90.0)
    default = percentile(stats, INT8, True, DEFAULT_PERCENTILE)
    assert calibrator_by_name("percentile")(stats, INT8, True) == default

"""Percentile: NumPy's quantile of the data, to the bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.calibration.calibrators.percentile import DEFAULT_PERCENTILE, percentile
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec

SYMMETRIC = QuantSpec(qtype="int8")
ASYMMETRIC = QuantSpec(qtype="int8", symmetric=False)
# Powers of two of the share left out, so that NumPy and we round the same number of values.
PERCENTS = st.sampled_from([50.0, 75.0, 93.75, 100.0 - 100.0 / 1024, 100.0])
VALUES = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e3, 1e3, width=32))


def near(value):
    """As far as a bin's middle may lie from a value in it: 1/128, or half of the first bin's width."""
    return pytest.approx(value, rel=1 / 128, abs=float(np.finfo(np.float32).tiny))


@settings(max_examples=80)
@given(VALUES, PERCENTS)
def test_symmetric_is_numpys_quantile_of_magnitudes(x, percent):
    """The larger end is the quantile of |x|, to half a bin."""
    rmin, rmax = percentile(TensorStatistics.from_array(x), SYMMETRIC, percent)
    wanted = float(np.quantile(np.abs(x).astype(np.float64), percent / 100, method="inverted_cdf"))
    assert max(-rmin, rmax) == near(wanted)


@settings(max_examples=80)
@given(VALUES, PERCENTS)
def test_asymmetric_cuts_half_at_each_end(x, percent):
    """Each end is NumPy's quantile of half the share, to half a bin."""
    rmin, rmax = percentile(TensorStatistics.from_array(x), ASYMMETRIC, percent)
    share = (1 - percent / 100) / 2
    high = float(np.quantile(x.astype(np.float64), 1 - share, method="inverted_cdf"))
    low = -float(np.quantile(-x.astype(np.float64), 1 - share, method="inverted_cdf"))
    # If half of the values lie beyond each end, the middles of one bin may come out in the wrong order.
    assert rmax == near(high) and rmin == near(low)


@given(VALUES)
def test_one_hundred_is_minmax(x):
    """Nothing left out: the observed range exactly, or its larger end when symmetric."""
    stats = TensorStatistics.from_array(x)
    assert percentile(stats, ASYMMETRIC, 100.0) == (stats.rmin, stats.rmax)
    assert max(map(abs, percentile(stats, SYMMETRIC, 100.0))) == stats.amax


def test_name_sets_the_percentile():
    """`percentile:90` is the function with 90, `percentile` has the default."""
    stats = TensorStatistics.from_array(np.random.default_rng(0).normal(size=999).astype(np.float32))
    assert Calibrator.parse("percentile:90")(stats, SYMMETRIC) == percentile(stats, SYMMETRIC, 90.0)
    default = percentile(stats, SYMMETRIC, DEFAULT_PERCENTILE)
    assert Calibrator.parse("percentile")(stats, SYMMETRIC) == default

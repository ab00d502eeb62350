"""MSE: never worse than min-max, and close to the best range that brute force finds on the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibrators.grid_error import Density, grid_error
from onnxfq.calibrators.mse import mse
from onnxfq.numerics import fake_quantize
from onnxfq.qparams import choose_qparams
from onnxfq.qtypes import QTYPES
from onnxfq.statistics import TensorStatistics

SCHEMES = [
    pytest.param(QTYPES[name], symmetric, id=f"{name}-{'sym' if symmetric else 'asym'}")
    for name, symmetric in [
        ("int8", True),
        ("int4", True),
        ("uint8", False),
        ("uint4", False),
        ("int8", False),
    ]
]
RNG = np.random.default_rng(11)
DATA = {
    "normal": RNG.normal(size=4000),
    "laplace": RNG.laplace(size=4000),
    "relu": np.maximum(RNG.normal(size=4000), 0),
    "skewed": RNG.gamma(1.0, size=4000) - 0.3,
    "outliers": np.concatenate([RNG.normal(size=4000), [60.0, -25.0]]),
    "uniform": RNG.uniform(-1, 3, size=4000),
}


def expected_error(stats, limits, qtype, symmetric):
    """The expected squared error of one range."""
    return grid_error(Density.of(stats), *(np.asarray([v]) for v in limits), qtype, symmetric)[0]


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from(SCHEMES),
)
def test_never_worse_than_minmax(x, scheme):
    """The full range is a candidate: the expected error is at most that of min-max, for any data."""
    qtype, symmetric = scheme.values
    stats = TensorStatistics.from_array(x)
    chosen = expected_error(stats, mse(stats, qtype, symmetric), qtype, symmetric)
    assert chosen <= expected_error(stats, (stats.rmin, stats.rmax), qtype, symmetric)


@settings(max_examples=40)
@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)))
def test_asymmetric_never_worse_than_any_common_shrinking(x):
    """Refining one end at a time never leaves the best range that shrinking both ends gives."""
    stats, qtype = TensorStatistics.from_array(x), QTYPES["uint4"]
    low, high = min(stats.rmin, 0.0), max(stats.rmax, 0.0)
    factors = np.exp2(-np.arange(57) / 8)
    common = grid_error(Density.of(stats), low * factors, high * factors, qtype, False).min()
    assert expected_error(stats, mse(stats, qtype, False), qtype, False) <= common


def real_error(x, limits, qtype, symmetric):
    """The squared error on the data itself."""
    scale, zero_point = choose_qparams(*limits, qtype, symmetric)
    rounded = fake_quantize(x, scale, zero_point, qtype=qtype)
    return float(np.sum((rounded.astype(np.float64) - x) ** 2))


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("qtype", "symmetric"), SCHEMES)
def test_close_to_brute_force_on_the_data(data, qtype, symmetric):
    """On the data, no range of a fine grid of both ends is much better than the one chosen."""
    x = DATA[data].astype(np.float32)
    stats = TensorStatistics.from_array(x)
    low, high = min(stats.rmin, 0.0), max(stats.rmax, 0.0)
    chosen = real_error(x, mse(stats, qtype, symmetric), qtype, symmetric)
    if symmetric:
        ranges = [(-stats.amax * f, stats.amax * f) for f in np.linspace(0.02, 1, 150)]
    else:
        steps = np.linspace(0.04, 1, 18)
        ranges = [(low * a, high * b) for a in (steps if low < 0 else [1.0]) for b in steps]
    best = min(real_error(x, limits, qtype, symmetric) for limits in ranges)
    # Ends are searched in 1/64 octaves one after the other, and values taken as even inside a bin.
    assert chosen <= 1.03 * best


def test_ranges_without_outliers_are_hardly_cut():
    """Uniform data saturates nothing worth saving: the range stays within two steps of the observed one."""
    stats = TensorStatistics.from_array(DATA["uniform"].astype(np.float32))
    rmin, rmax = mse(stats, QTYPES["int8"], False)
    step = 4 / 255
    assert rmin == pytest.approx(-1, abs=2 * step) and rmax == pytest.approx(3, abs=2 * step)

"""MSE: never worse than min-max, and close to the best range that brute force finds on the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibration.calibrators.grid_error import Density, grid_error
from onnxfq.calibration.calibrators.mse import mse
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.spec import QuantSpec

SCHEMES = [
    QuantSpec(qtype=name, symmetric=symmetric)
    for name, symmetric in [
        ("int8", True),
        ("int4", True),
        ("uint8", False),
        ("uint4", False),
        ("int8", False),
    ]
] + [QuantSpec(qtype="int8", power_of_two=True)]
RNG = np.random.default_rng(11)
DATA = {
    "normal": RNG.normal(size=4000),
    "laplace": RNG.laplace(size=4000),
    "relu": np.maximum(RNG.normal(size=4000), 0),
    "skewed": RNG.gamma(1.0, size=4000) - 0.3,
    "outliers": np.concatenate([RNG.normal(size=4000), [60.0, -25.0]]),
    "uniform": RNG.uniform(-1, 3, size=4000),
}


def expected_error(stats, limits, spec):
    """The expected squared error of one range."""
    return grid_error(Density.from_statistics(stats), *(np.asarray([v]) for v in limits), spec)[0]


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from(SCHEMES),
)
def test_never_worse_than_minmax(x, spec):
    """The full range is a candidate: the expected error is at most the error of min-max, for any data."""
    stats = TensorStatistics.from_array(x)
    chosen = expected_error(stats, mse(stats, spec), spec)
    # The search leaves out bins that every grid makes 0, so its sums round otherwise.
    assert chosen <= expected_error(stats, (stats.rmin, stats.rmax), spec) * (1 + 1e-9)


@settings(max_examples=40)
@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)))
def test_asymmetric_never_worse_than_any_common_shrinking(x):
    """Refining one end at a time never leaves the best range that shrinking both ends gives."""
    stats, spec = TensorStatistics.from_array(x), QuantSpec(qtype="uint4", symmetric=False)
    low, high = min(stats.rmin, 0.0), max(stats.rmax, 0.0)
    factors = np.exp2(-np.arange(57) / 8)
    common = grid_error(Density.from_statistics(stats), low * factors, high * factors, spec).min()
    assert expected_error(stats, mse(stats, spec), spec) <= common * (1 + 1e-9)  # as above


def real_error(x, limits, spec):
    """The squared error on the data itself."""
    rules = ParamRules(spec.power_of_two)
    scale, zero_point = choose_qparams(*limits, spec.qtype, spec.symmetric, rules)
    rounded = fake_quantize(x, scale, zero_point, qtype=spec.qtype)
    return float(np.sum((rounded.astype(np.float64) - x) ** 2))


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("spec", SCHEMES, ids=str)
def test_close_to_brute_force_on_the_data(data, spec):
    """On the data, no range of a fine grid of both ends is much better than the one chosen."""
    x = DATA[data].astype(np.float32)
    stats = TensorStatistics.from_array(x)
    low, high = min(stats.rmin, 0.0), max(stats.rmax, 0.0)
    chosen = real_error(x, mse(stats, spec), spec)
    if spec.symmetric:
        ranges = [(-stats.amax * f, stats.amax * f) for f in np.linspace(0.02, 1, 150)]
    else:
        steps = np.linspace(0.04, 1, 18)
        ranges = [(low * a, high * b) for a in (steps if low < 0 else [1.0]) for b in steps]
    best = min(real_error(x, limits, spec) for limits in ranges)
    # Ends are searched in 1/64 octaves one after the other, and values taken as even inside a bin.
    assert chosen <= 1.03 * best


def test_power_of_two_scales_are_those_that_are_weighed():
    """With scales 2^k the best of them on the data is found, which rounding up the best range may miss."""
    x = (np.random.default_rng(4).normal(size=20_000) * 1.07).astype(np.float32)
    stats, spec = TensorStatistics.from_array(x), QuantSpec(qtype="int8", power_of_two=True)
    powers = [2.0**k * 127 for k in range(-12, 1)]
    best = min(powers, key=lambda amax: real_error(x, (-amax, amax), spec))
    scale, _ = choose_qparams(*mse(stats, spec), spec.qtype, True, ParamRules(True))
    assert scale * 127 == best

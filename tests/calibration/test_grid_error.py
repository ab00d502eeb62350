"""The closed-form error of a grid: against fine numeric integration and against the data itself."""

from __future__ import annotations

import numpy as np
import pytest
from loops import loop_over

from onnxfq.calibration.calibrators.grid_error import (
    Density,
    compute_squared_error,
    estimate_sqnr_db,
    float_squared_error,
    grid_error,
    range_sqnr_db,
    saturation_error,
)
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec

POINTS = 20_000
FLOATS = [qtype.name for qtype in QTYPES.values() if qtype.is_float]


BINS = loop_over(
    ("low", "high"),
    [
        (0.02, 0.04),  # inside one cell
        (0.1, 0.1),  # one value
        (0.0, 0.95),  # many cells
        (-0.33, 0.71),  # both signs
        (0.049, 0.051),  # across a boundary
        (0.8, 3.0),  # into saturation
        (2.0, 3.0),  # all saturated above
        (-9.0, -2.0),  # all saturated below
        (-5.0, 5.0),  # saturated at both ends
        (0.95, 1.05),  # from half a cell to half a cell
    ],
)


def integrated(low, high, count, scale, limits):
    """Count * mean of (fq(x) - x)^2 over [low, high] by the midpoint rule, from the definition."""
    x = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
    y = scale * np.clip(np.round(x / scale), *limits)
    return count * np.mean((y - x) ** 2)


@BINS
@loop_over("limits", [(-8, 7), (0, 15), (-15, 0), (-128, 127)])
def test_one_bin_is_the_integral(low, high, limits):
    """For a uniform bin anywhere on or off the grid, the closed form is the integral."""
    density = Density(*(np.asarray([v]) for v in (low, high, 7.0)))
    one = np.ones(1)
    closed = compute_squared_error(density, 0.1 * one, limits[0] * one, limits[1] * one)[0]
    # The midpoint rule is off by at most a kink's share of one of 20,000 pieces.
    assert closed == pytest.approx(integrated(low, high, 7.0, 0.1, limits), rel=2e-4, abs=1e-12)


@BINS
@loop_over("scale", [0.3, 0.01, 0.002])
@loop_over("name", FLOATS)
def test_one_bin_is_the_integral_for_floats(low, high, scale, name):
    """The same for grids whose cells differ, against the arithmetic of the kernels."""
    density = Density(*(np.asarray([v]) for v in (low, high, 7.0)))
    closed = float_squared_error(density, np.asarray([np.float32(scale)], np.float64), QTYPES[name])[0]
    x = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
    y = fake_quantize(x.astype(np.float32), np.float32(scale), qtype=name).astype(np.float64)
    # Midpoint rule as above; x itself is rounded to float32, which moves (y - x) by up to 2^-24 of x.
    close = 7.0 * max(abs(low), abs(high)) ** 2 * 2.0**-21
    assert closed == pytest.approx(7.0 * np.mean((y - x) ** 2), rel=2e-3, abs=close)


def test_bins_and_candidates_add_up():
    """Many bins and many grids at once are the sums of single ones."""
    stats = TensorStatistics.from_array(np.random.default_rng(0).normal(size=300).astype(np.float32))
    density = Density.from_statistics(stats)
    scales = np.asarray([0.01, 0.1, 0.5])
    low, high = np.full(3, -8.0), np.full(3, 7.0)
    together = compute_squared_error(density, scales, low, high)
    for at, scale in enumerate(scales):
        bins = zip(density.low, density.high, density.counts, strict=True)
        assert together[at] == pytest.approx(sum(integrated(*one, scale, (-8, 7)) for one in bins), rel=1e-4)


@loop_over(
    ("name", "symmetric"),
    [
        (name, symmetric)
        for name in ("int4", "uint4", "int8", "uint8")
        for symmetric in {name[0] == "i", False}
    ]
    + [(name, True) for name in FLOATS],
)
@loop_over("factor", [1.0, 0.4, 0.05])
def test_samples_drawn_inside_the_bins_agree(name, symmetric, factor):
    """The expected error is the error of values drawn evenly inside each bin and really quantized."""
    qtype = QTYPES[name]
    rng = np.random.default_rng(1)
    stats = TensorStatistics.from_array((rng.laplace(size=2000) + 0.3).astype(np.float32))
    rmin, rmax = np.asarray([stats.rmin * factor]), np.asarray([stats.rmax * factor])
    closed = grid_error(
        Density.from_statistics(stats), rmin, rmax, QuantSpec(qtype=qtype, symmetric=symmetric)
    )[0]
    low, high = stats.edges()
    drawn = rng.uniform(
        np.repeat(low, stats.counts)[:, None], np.repeat(high, stats.counts)[:, None], (2000, 200)
    )
    scale, zero_point = choose_qparams(rmin[0], rmax[0], qtype, symmetric)
    rounded = fake_quantize(drawn.astype(np.float32), scale, zero_point, qtype=qtype)
    # 400,000 draws: the mean of a squared error is known to about 1%.
    assert closed == pytest.approx(np.sum((rounded - drawn) ** 2) / 200, rel=0.01)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", *FLOATS])
def test_expected_sqnr_is_close_to_the_measured(name):
    """The histogram predicts the result of quantizing the data, to a fifth of a dB."""
    x = np.random.default_rng(2).normal(size=50_000).astype(np.float32)
    stats = TensorStatistics.from_array(x)
    scale, zero_point = choose_qparams(stats.rmin, stats.rmax, QTYPES[name], QTYPES[name].is_float)
    rounded = fake_quantize(x, scale, zero_point, qtype=QTYPES[name])
    expected = estimate_sqnr_db(stats, float(scale), int(zero_point), QTYPES[name])
    # The values' places inside a bin are taken as even.
    assert expected == pytest.approx(ErrorSums.from_arrays(x, rounded).sqnr_db, abs=0.2)


def test_values_on_the_grid_have_no_error():
    """Constants on the grid: no noise, infinitely many dB."""
    stats = TensorStatistics.from_array(np.full(5, 0.5, np.float32))
    assert estimate_sqnr_db(stats, 0.25, 0, QTYPES["int8"]) == np.inf


def test_power_is_the_sum_of_squares():
    """The density has the power of the data, to the width of a bin."""
    x = np.random.default_rng(4).normal(size=5000).astype(np.float32)
    power = Density.from_statistics(TensorStatistics.from_array(x)).power
    assert power == pytest.approx(float(np.sum(x.astype(np.float64) ** 2)), rel=1 / 64)  # one bin's width


@BINS
@pytest.mark.parametrize("ends", [(-0.5, 0.7), (0.0, 1.0), (-3.0, 0.0)], ids=str)
def test_saturation_is_the_integral(low, high, ends):
    """The squared distance to the grid's ends, by the midpoint rule, from the definition."""
    density = Density(*(np.asarray([v]) for v in (low, high, 7.0)))
    closed = saturation_error(density, *(np.asarray([v]) for v in ends))[0]
    x = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
    wanted = 7.0 * np.mean((x - np.clip(x, *ends)) ** 2)
    # An end may lie anywhere inside one of the 20,000 pieces.
    assert closed == pytest.approx(wanted, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("name", ["int8", "float8e4m3fn"])
def test_saturated_values_may_weigh_more(name):
    """A weight of 3 adds twice the squared distance to the ends of the grid."""
    stats = TensorStatistics.from_array(np.random.default_rng(3).normal(size=5000).astype(np.float32))
    density, spec, end = Density.from_statistics(stats), QuantSpec(qtype=name), np.asarray([1.5])
    one, three = (grid_error(density, -end, end, spec, weight)[0] for weight in (1.0, 3.0))
    scale, _ = choose_qparams(-1.5, 1.5, spec.qtype, True)
    low, high = (np.asarray([float(scale) * q]) for q in (spec.qtype.qmin, spec.qtype.qmax))
    assert three == pytest.approx(one + 2 * saturation_error(density, low, high)[0], rel=1e-12)


@pytest.mark.parametrize("name", ["int4", "uint8", "int16", "float8e4m3fn", "float4e2m1"])
def test_bins_that_every_grid_makes_zero_add_a_constant(name):
    """Leaving them out of the sums changes no error: values from 2^-90 to 2^20, grids from small to large."""
    rng = np.random.default_rng(6)
    x = (np.exp2(rng.uniform(-90, 20, 4000)) * rng.choice([-1, 1], 4000)).astype(np.float32)
    stats, spec = TensorStatistics.from_array(x), QuantSpec(qtype=name, symmetric=name[0] != "u")
    ends = stats.amax * np.exp2(-np.arange(8.0))
    smallest, _ = choose_qparams(-ends[-1], ends[-1], spec.qtype, spec.symmetric)
    density = Density.from_statistics(stats)
    fewer = density.drop_rounded_to_zero(float(smallest), spec.qtype)
    assert fewer.low.size < 0.6 * density.low.size
    assert fewer.power == pytest.approx(density.power, rel=1e-12)
    both = (grid_error(d, -ends, ends, spec) for d in (density, fewer))
    np.testing.assert_allclose(*both, rtol=1e-9)  # sums in another order


def test_range_sqnr_has_the_scale_of_the_spec():
    """With power-of-two scales the figure belongs to the larger scale."""
    stats = TensorStatistics.from_array(np.random.default_rng(8).normal(size=5000).astype(np.float32))
    for power_of_two in (False, True):
        spec = QuantSpec(qtype="int8", power_of_two=power_of_two)
        scale, zero = choose_qparams(-3.0, 3.0, spec.qtype, True, ParamRules(power_of_two))
        wanted = estimate_sqnr_db(stats, float(scale), int(zero), spec.qtype)
        assert range_sqnr_db(stats, (-3.0, 3.0), spec) == wanted

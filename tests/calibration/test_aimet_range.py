"""AIMET's ranges: its published examples and its own scales, then its rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import fake_quantize

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import SpecError
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.qparams import adjust_min_max, choose_qparams
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name
from onnxfq.numerics.spec import QuantSpec

UINT8 = QTYPES["uint8"]
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda v: v == 0 or abs(v) > 2.0**-100)


def test_the_published_example():
    """Shape (5, 10), blocks (1, 5), 8 bits, [-1, 1]: multiples of 2/255 from -0.9961 to 1.0039."""
    x = np.random.default_rng(0).normal(size=(5, 10)).astype(np.float32)
    rmin, rmax = adjust_min_max(-np.ones((5, 2)), np.ones((5, 2)), UINT8, symmetric=False)
    assert np.unique(rmin.round(4)).tolist() == [np.float32(-0.9961)]
    assert np.unique(rmax.round(4)).tolist() == [np.float32(1.0039)]
    scale, zero_point = choose_qparams(rmin, rmax, UINT8, symmetric=False)
    y = fake_quantize(x, scale, zero_point, qtype=UINT8, block_shape=(1, 5)).astype(np.float64)
    steps = y / (2 / 255)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)  # a float32 scale times up to 128 steps
    assert -0.9962 < y.min() and y.max() < 1.0040
    assert np.abs(x).max() > 1.5, "some values saturate"


@given(st.tuples(FLOATS, FLOATS).map(sorted))
def test_zero_is_on_the_grid(limits):
    """The shifted range starts a whole number of steps below 0, half a step from the asked one at most."""
    rmin, rmax = (float(end) for end in adjust_min_max(*limits, UINT8, symmetric=False))
    delta = (rmax - rmin) / 255
    assert rmin <= 0 <= rmax
    assert rmin / delta == pytest.approx(round(rmin / delta), abs=1e-3)  # float32 ends
    assert abs(rmin - min(limits[0], 0)) <= 0.501 * delta or limits == [0, 0]


@given(st.tuples(FLOATS, FLOATS).map(sorted))
def test_its_grid_is_ours(limits):
    """choose_qparams finds the same scale, and the same zero point up to a tie, in the shifted range."""
    rmin, rmax = adjust_min_max(*limits, UINT8, symmetric=False)
    shifted, zero_point = choose_qparams(rmin, rmax, UINT8, symmetric=False)
    scale, ours = choose_qparams(*limits, UINT8, symmetric=False)
    if limits != [0, 0]:
        np.testing.assert_allclose(shifted, scale, rtol=2.0**-20)  # ends and scale are rounded to float32
        assert abs(int(zero_point) - int(ours)) <= 1


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((-1.0, 0.5), (-1.0, 0.9922)),
        ((-0.5, 1.0), (-1.0079, 1.0)),
        ((-1.0, 1.0), (-1.0079, 1.0)),
        ((-1.0, 127 / 128), (-1.0, 0.9922)),
    ],
)
def test_symmetric_ranges_of_aimet(limits, expected):
    """aimet-torch 2.42.0, adjust_min_max(min, max, 255, is_symmetric=True): delta is max/127 or -min/128."""
    ends = adjust_min_max(*limits, QTYPES["int8"], symmetric=True)
    assert tuple(round(float(end), 4) for end in ends) == expected
    scale, zero_point = choose_qparams(*limits, QTYPES["int8"], symmetric=True)
    assert (float(scale) * -128, float(scale) * 127) == pytest.approx(ends, rel=2.0**-22)  # float32
    assert zero_point == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int8", (-128 / 127, 1.0)),
        ("int8[-127,127]", (-1.0, 1.0)),
        ("int4", (-8 / 7, 1.0)),
        ("float8e4m3fn", (-1.0, 1.0)),
    ],
)
def test_symmetric_variants(name, expected):
    """Symmetric has one more number below 0, strict symmetric lacks it."""
    ends = adjust_min_max(-0.25, 1.0, qtype_by_name(name), symmetric=True)
    assert tuple(float(end) for end in ends) == pytest.approx(expected, rel=2.0**-22)  # float32


AIMET_SCALES = {
    "int2": [0.32021132, 0.65200001, 1.1625154, 0.68323165, 0.46086273],
    "int3": [0.2134742, 0.43466666, 0.5812577, 0.45548779, 0.30115673],
    "int4": [0.09148895, 0.18628572, 0.29062885, 0.19520906, 0.12906717],
    "int8": [0.0050426978, 0.010267717, 0.018164301, 0.010759555, 0.0072009796],
}


@pytest.mark.parametrize("name", AIMET_SCALES)
def test_minmax_scales_are_aimets(name):
    """aimet-torch 2.42.0, MinMaxEncodingAnalyzer with is_symmetric=True on these rows: the same scales."""
    rows = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)[:5]
    spec = QuantSpec(qtype=name, axis=0)
    ranges = group_ranges(rows, spec, MINMAX)
    scale, _ = choose_qparams(*ranges, spec.qtype, symmetric=True)
    np.testing.assert_array_max_ulp(scale, np.float32(AIMET_SCALES[name]), 2)  # theirs is computed in float32
    one_by_one = [MINMAX(TensorStatistics.from_array(row), spec) for row in rows]
    np.testing.assert_array_equal(np.asarray(one_by_one).T, ranges)


@pytest.mark.parametrize(
    ("name", "before", "least"), [("int4", 18.6, 19.0), ("int3", 11.3, 11.8), ("int2", 2.9, 7.2)]
)
def test_blocks_of_a_normal_weight(name, before, least):
    """SQNR in dB of blocks of 128: both ends of the grid against the largest magnitude / qmax."""
    blocks = np.random.default_rng(0).normal(size=(4096, 128)).astype(np.float32)
    spec = QuantSpec(qtype=name, axis=0)
    qtype = spec.qtype

    def sqnr_db(scale):
        rounded = fake_quantize(blocks, scale.astype(np.float32), qtype=qtype, axis=0)
        return ErrorSums.from_arrays(blocks, rounded).sqnr_db

    ours, _ = choose_qparams(*group_ranges(blocks, spec, MINMAX), qtype, symmetric=True)
    assert sqnr_db(np.abs(blocks).max(axis=1) / qtype.qmax) < before
    assert sqnr_db(ours) > least


def test_unsigned_symmetric():
    """Values that are not negative use all numbers of an unsigned type; others are refused."""
    assert [float(end) for end in adjust_min_max(0.0, 255.0, UINT8, symmetric=True)] == [0.0, 255.0]
    with pytest.raises(SpecError) as caught:
        adjust_min_max(-1.0, 1.0, UINT8, symmetric=True)
    assert str(caught.value) == (
        "unsigned symmetric uint8 holds no negative numbers, the range starts at -1; use int8"
    )


def test_ranges_that_are_none():
    """Errors are the same as in choose_qparams."""
    with pytest.raises(SpecError, match="a range must be finite in float32"):
        adjust_min_max(np.nan, 1.0, UINT8, symmetric=False)
    with pytest.raises(SpecError, match="float8e5m2 has no zero point"):
        adjust_min_max(0.0, 1.0, QTYPES["float8e5m2"], symmetric=False)
    assert [float(end) for end in adjust_min_max(0.0, 0.0, UINT8, symmetric=False)] == [0.0, 255.0]

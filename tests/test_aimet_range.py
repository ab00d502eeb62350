"""AIMET's ranges: its published example, then its rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import fake_quantize

from onnxfq.errors import SpecError
from onnxfq.numerics.qparams import adjust_min_max, choose_qparams
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name

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
    ("name", "expected"),
    [
        ("int8", (-128 / 127, 1.0)),
        ("int8[-127,127]", (-1.0, 1.0)),
        ("int4", (-8 / 7, 1.0)),
        ("float8e4m3fn", (-1.0, 1.0)),
    ],
)
def test_symmetric_variants(name, expected):
    """Symmetric has one more number below 0, strict symmetric has not."""
    ends = adjust_min_max(-0.25, 1.0, qtype_by_name(name), symmetric=True)
    assert tuple(float(end) for end in ends) == pytest.approx(expected, rel=2.0**-22)  # float32


def test_unsigned_symmetric():
    """Values that are not negative use all numbers of an unsigned type; others are refused."""
    assert [float(end) for end in adjust_min_max(0.0, 255.0, UINT8, symmetric=True)] == [0.0, 255.0]
    with pytest.raises(SpecError) as caught:
        adjust_min_max(-1.0, 1.0, UINT8, symmetric=True)
    assert str(caught.value) == (
        "unsigned symmetric uint8 holds no negative numbers, the range starts at -1; use int8"
    )


def test_ranges_that_are_none():
    """Errors are those of choose_qparams."""
    with pytest.raises(SpecError, match="a range must be finite in float32"):
        adjust_min_max(np.nan, 1.0, UINT8, symmetric=False)
    with pytest.raises(SpecError, match="float8e5m2 has no zero point"):
        adjust_min_max(0.0, 1.0, QTYPES["float8e5m2"], symmetric=False)
    assert [float(end) for end in adjust_min_max(0.0, 0.0, UINT8, symmetric=False)] == [0.0, 255.0]

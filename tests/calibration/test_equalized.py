"""Scales of equalized channels: what the rule promises, for any ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keyword_numerics import fake_quantize

from onnxfq.calibration.calibrators.groups import MOST_OCTAVES, choose_equalized_qparams
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

INT8 = QuantSpec(qtype="int8", axis=1, equalized=True)
UINT8 = QuantSpec(qtype="uint8", symmetric=False, axis=1, equalized=True)
ends = st.floats(-1e6, 1e6, width=32)
channels = st.lists(st.tuples(ends, ends).map(sorted), min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(ranges=channels)
@pytest.mark.parametrize("spec", [INT8, UINT8], ids=str)
def test_powers_of_two_apart(spec: QuantSpec, ranges: list) -> None:
    """Quotients of two scales are powers of two, all zero points are one, and every scale is positive."""
    scale, zero_point = choose_equalized_qparams(np.asarray(ranges, np.float32), spec)
    assert scale.dtype == np.float32 and (scale > 0).all() and np.isfinite(scale).all()
    assert np.unique(np.frexp(scale)[0]).size == 1 and np.unique(zero_point).size == 1


@settings(max_examples=200, deadline=None)
@given(ranges=channels)
@pytest.mark.parametrize("spec", [INT8, UINT8], ids=str)
def test_nothing_observed_saturates(spec: QuantSpec, ranges: list) -> None:
    """Both ends of every channel are within half a step of what they become; asymmetric a step.

    The asymmetric zero point is rounded, which moves the grid by up to half a step more.
    """
    array = np.asarray(ranges, np.float32)
    scale, zero_point = choose_equalized_qparams(array, spec)
    rounded = fake_quantize(array, scale, zero_point, qtype=spec.qtype, axis=0)
    most = 0.5 if spec.symmetric else 1.0
    # 1e-4 of a step: scale and quotient are rounded to float32, at up to 255 steps.
    assert (np.abs(rounded - array) <= (most + 1e-4) * scale[:, None]).all()


@settings(max_examples=200, deadline=None)
@given(ranges=channels)
def test_less_than_twice_the_step_of_a_grid_of_its_own(ranges: list) -> None:
    """Symmetric, of channels that are not 2^12 times smaller than the largest."""
    array = np.asarray(ranges, np.float32)
    scale, _ = choose_equalized_qparams(array, INT8)
    own, _ = choose_qparams(np.minimum(array[:, 0], 0), np.maximum(array[:, 1], 0), INT8.qtype, True)
    amax = np.abs(array).max(axis=1).astype(np.float64)
    near = amax * 2.0**MOST_OCTAVES >= amax.max()
    alive = near & (own > np.finfo(np.float32).tiny * 2.0**MOST_OCTAVES) & (amax > 0)
    # 1e-6: both scales are rounded to float32. A grid of its own may reach to -128, the common one to 127.
    assert (scale[alive] < own[alive] * 2.0 * 128 / 127 * (1 + 1e-6)).all()
    assert (scale[alive] >= own[alive] * (1 - 1e-6)).all()


def test_by_hand() -> None:
    """A quarter of the largest is enlarged four times, three eighths twice; a dead channel not at all."""
    ranges = np.asarray([[-8, 1], [0, 2], [-3, 3], [0, 0], [np.inf, -np.inf]], np.float32)
    scale, zero_point = choose_equalized_qparams(ranges, INT8)
    one = np.float32(8 / 127)
    np.testing.assert_array_equal(scale, [one, one / 4, one / 2, one, one])
    assert not zero_point.any()


def test_a_channel_that_is_almost_dead() -> None:
    """Enlarged by 2^12, and by no more."""
    scale, _ = choose_equalized_qparams(np.asarray([[0, 1], [0, 1e-20]], np.float32), INT8)
    assert scale[0] / scale[1] == 2.0**MOST_OCTAVES


def test_ranges_too_small_to_divide() -> None:
    """Near the smallest normal float32 all channels have one scale: a smaller one would be rounded."""
    scale, _ = choose_equalized_qparams(np.asarray([[0, 1e-36], [0, 1e-38]], np.float32), INT8)
    assert scale[0] == scale[1] > 0

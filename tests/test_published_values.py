"""Numbers that other tools publish about their quantizers come out of ours."""

from __future__ import annotations

import numpy as np
import pytest
from keyword_numerics import fake_quantize

# A weight of a published example, with the mean squared errors it reports.
WEIGHT = np.array(
    [
        [-539.7578, -559.8864, 615.4858, -677.5037, -481.3652, 557.0392],
        [-761.4703, 502.1984, 623.5497, 277.9323, 183.5344, 395.8571],
        [774.6538, 83.3037, -737.2340, 944.8324, 750.8967, -23.7258],
        [-598.6270, -396.6147, -904.1458, 678.6168, -88.8622, 705.5219],
        [385.5581, -203.1455, -654.7877, 356.3862, -657.0405, -227.5714],
        [608.7488, -557.6073, -50.0951, -138.9851, 117.3401, 985.9318],
    ],
    np.float32,
)


def squared_error(scale, zero_point=0, **options) -> float:
    """Mean squared error of WEIGHT on an int8 grid."""
    y = fake_quantize(WEIGHT, scale, zero_point, qtype="int8", **options)
    return float(np.mean((y.astype(np.float64) - WEIGHT) ** 2))


def test_asymmetric_with_a_fraction_as_zero_point():
    """Scale (max - min) / 255 and the zero point it implies, not rounded: 4.7475."""
    scale = (WEIGHT.max() - WEIGHT.min()) / np.float32(255)
    zero_point = np.float32(-128) - WEIGHT.min() / scale
    assert scale == pytest.approx(7.41207, abs=5e-6) and zero_point == pytest.approx(-6.01708, abs=5e-5)
    assert squared_error(scale, zero_point) == pytest.approx(4.7475, abs=5e-5)


@pytest.mark.parametrize(("axis", "error"), [(None, 4.4585), (0, 2.5209), (1, 2.2848)], ids=str)
def test_symmetric(axis, error):
    """The scale is amax / 127 for the tensor, its rows and its columns."""
    other = None if axis is None else 1 - axis
    assert squared_error(np.abs(WEIGHT).max(axis=other) / np.float32(127), axis=axis) == pytest.approx(
        error, abs=5e-5
    )


def test_blocks_of_aimet():
    """AIMET's example: blocks (1, 5) of a (5, 10) tensor, 8 bits from -1 to 1: multiples of 2/255."""
    x = np.random.default_rng(0).standard_normal((5, 10)).astype(np.float32)
    scale = np.full((5, 2), 2 / 255, np.float32)
    y = fake_quantize(x, scale, np.full((5, 2), 127), qtype="uint8", block_shape=(1, 5))
    steps = y / (2 / 255)
    assert np.abs(steps - np.rint(steps)).max() < 1e-4
    assert y.min() == pytest.approx(-0.9961, abs=5e-5) and y.max() == pytest.approx(1.0039, abs=5e-5)

"""Auto: what its definition promises, on data where the methods disagree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibration.calibrators.best_error import (
    METHODS,
    TYPICAL_DB,
    best_error,
    estimate_figures,
    middle_half,
)
from onnxfq.calibration.calibrators.grid_error import Density
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

INT8 = QuantSpec(qtype="int8")
SPECS = [
    INT8,
    QuantSpec(qtype="uint8", symmetric=False),
    QuantSpec(qtype="int4"),
    QuantSpec(qtype="float8e4m3fn"),
]
FLOATS = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=60)
@given(hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS), st.sampled_from(SPECS))
def test_no_method_is_better_in_both(x, spec):
    """The range is a method's; 14 dB at typical values are kept if any keeps them, with the best SQNR."""
    stats = TensorStatistics.from_array(x)
    ranges = [method(stats, spec) for method in METHODS.values()]
    chosen = best_error(stats, spec)
    assert chosen in ranges
    whole, middle = estimate_figures(stats, spec, ranges)
    at = ranges.index(chosen)
    if (middle >= TYPICAL_DB).any():
        assert middle[at] >= TYPICAL_DB
        assert whole[at] == whole[middle >= TYPICAL_DB].max()
    else:
        assert not ((whole > whole[at]) & (middle > middle[at])).any()


def test_a_rare_large_value_does_not_cost_the_typical_ones():
    """If squared error keeps one huge value and loses the rest, another method is taken."""
    rng = np.random.default_rng(0)
    x = np.append(rng.normal(size=100_000), 2000.0).astype(np.float32)
    stats = TensorStatistics.from_array(x)
    lost, kept = METHODS["mse"](stats, INT8), best_error(stats, INT8)
    typical = np.abs(x)[(np.abs(x) > 0.3) & (np.abs(x) < 1.2)]

    def sqnr_of(limits):
        scale, _ = choose_qparams(*limits, INT8.qtype, True)
        return ErrorSums.from_arrays(typical, fake_quantize(typical, scale, qtype="int8")).sqnr_db

    assert sqnr_of(lost) < 1 and sqnr_of(kept) > 14


@pytest.mark.parametrize("kind", ["normal", "half zeros", "one value", "two values", "with subnormals"])
def test_the_middle_half_is_between_the_quartiles(kind):
    """Its ends are NumPy's quartiles of the magnitudes that are not 0, to a bin; it is never empty."""
    rng = np.random.default_rng(2)
    x = {
        "normal": rng.normal(size=9000),
        "half zeros": np.maximum(rng.normal(size=9000), 0),
        "one value": np.full(5, 0.3),
        "two values": np.asarray([1.0, -3.0] * 4),
        "with subnormals": np.append(rng.normal(size=9000), rng.normal(size=9000) * 1e-40),
    }[kind].astype(np.float32)
    half = middle_half(Density.from_statistics(TensorStatistics.from_array(x)))
    magnitudes = np.abs(x)[np.abs(x) > 1e-37]
    low, high = np.quantile(magnitudes, [0.25, 0.75])
    far = np.maximum(-half.low, half.high)
    near = np.minimum(np.abs(half.low), np.abs(half.high))
    assert half.counts.sum() > 0
    assert near.min() >= low * (1 - 1 / 32) and far.max() <= high * (1 + 1 / 32)


def test_zeros_have_no_middle():
    """A tensor of zeros gives a range too."""
    stats = TensorStatistics.from_array(np.zeros(9, np.float32))
    assert best_error(stats, INT8) == (0.0, 0.0)

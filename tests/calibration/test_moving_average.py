"""Moving average: torch's own observer, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.calibration.calibrators.moving_average import average_ranges
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import StatisticsError
from onnxfq.numerics.spec import QuantSpec

SPEC = QuantSpec(qtype="int8")


def fed(batches):
    """Statistics of batches that came one by one."""
    merged = TensorStatistics()
    for batch in batches:
        one = TensorStatistics.from_array(batch)
        merged = merged.merge(replace(one, feed_ranges=np.asarray([(one.rmin, one.rmax)], np.float32)))
    return merged


def batches(seed=0, count=40):
    """Batches whose ranges differ."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=200) * rng.uniform(0.1, 9)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("constant", [0.01, 0.1, 0.5, 1.0])
def test_it_is_torchs_observer(constant):
    """MovingAverageMinMaxObserver over the same batches holds the same float32 numbers."""
    observer = pytest.importorskip("torch.ao.quantization").MovingAverageMinMaxObserver(constant)
    torch = pytest.importorskip("torch")
    for batch in batches():
        observer(torch.from_numpy(batch))
    wanted = (observer.min_val.item(), observer.max_val.item())
    assert Calibrator.parse(f"moving_average:{constant}")(fed(batches()), SPEC) == wanted


def test_the_default_is_a_hundredth():
    """Without an argument the constant is torch's default, 0.01."""
    stats = fed(batches(1))
    assert Calibrator.parse("moving_average")(stats, SPEC) == average_ranges(stats, SPEC, 0.01)


def test_a_feed_without_values_is_passed_over():
    """An empty feed has no range: (+inf, -inf) changes nothing."""
    first, second = batches(3, count=2)
    nothing = np.zeros(0, np.float32)
    assert average_ranges(fed([first, nothing, second]), SPEC) == average_ranges(fed([first, second]), SPEC)


def test_statistics_without_feed_ranges_are_refused():
    """A missing record is named, with the remedy."""
    with pytest.raises(StatisticsError, match="needs the range of each feed, and these statistics hold none"):
        average_ranges(TensorStatistics.from_array(np.ones(3, np.float32)), SPEC)

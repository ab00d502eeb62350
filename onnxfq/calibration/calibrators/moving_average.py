"""Moving average: a range that follows the ranges of the feeds, as in torch's observers."""

from __future__ import annotations

import numpy as np

from onnxfq.calibration.calibrators.method_parameters import Parameter, require_numbers
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import StatisticsError
from onnxfq.numerics.spec import QuantSpec

DEFAULT_CONSTANT = 0.01


def average_ranges(
    statistics: TensorStatistics, spec: QuantSpec, constant: float = DEFAULT_CONSTANT
) -> tuple[float, float]:
    """Return the averaged (rmin, rmax).

    The average starts as the range of the first feed, then r += constant * (r of the feed - r).

    Source: torch.ao.quantization MovingAverageMinMaxObserver, averaging_constant; the same float32
    arithmetic, so the same bits if feeds equal torch's batches. A feed without finite values is ignored.
    Raises StatisticsError if the range of each feed was not recorded.
    """
    ranges = statistics.feed_ranges[np.isfinite(statistics.feed_ranges).all(axis=1)]
    if ranges.size == 0:
        raise StatisticsError(
            "calibrator moving_average needs the range of each feed, and these statistics hold none; "
            "observe again, or use minmax or percentile"
        )
    average = ranges[0].copy()
    with np.errstate(over="ignore"):
        for one in ranges[1:]:
            average += np.float32(constant) * (one - average)
    # The difference of two huge ends can overflow float32, but the average lies within the observed range.
    average = np.where(np.isfinite(average), average, [statistics.rmin, statistics.rmax])
    # Rounding may swap two ends that nearly meet.
    return float(average.min()), float(average.max())


def check_constant(parameters: tuple[Parameter, ...]) -> str:
    """Return the rule that the parameter breaks; empty if valid."""
    (constant,) = require_numbers(parameters, 1)
    fits = 0.0 < constant <= 1.0
    return "" if fits else "the averaging constant must be above 0 and at most 1, as in moving_average:0.1"

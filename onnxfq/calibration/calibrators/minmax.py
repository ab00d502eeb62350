"""Min-max: the whole observed range, nothing saturates."""

from __future__ import annotations

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec


def minmax(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return (rmin, rmax) as observed."""
    return statistics.rmin, statistics.rmax

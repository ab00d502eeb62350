"""Min-max: the whole observed range, without saturation."""

from __future__ import annotations

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec


def minmax(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return (rmin, rmax) as observed."""
    return statistics.rmin, statistics.rmax

"""Min-max: the whole observed range, nothing saturates."""

from __future__ import annotations

from onnxfq.spec import QuantSpec
from onnxfq.statistics import TensorStatistics


def minmax(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return (rmin, rmax) as observed."""
    return statistics.rmin, statistics.rmax

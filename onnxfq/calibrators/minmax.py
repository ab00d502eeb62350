"""Min-max: the whole observed range, nothing saturates."""

from __future__ import annotations

from onnxfq.qtypes import QType
from onnxfq.statistics import TensorStatistics


def minmax(statistics: TensorStatistics, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return (rmin, rmax) as observed."""
    return statistics.rmin, statistics.rmax

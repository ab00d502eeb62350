"""What observers gather of tensors, channels and blocks: exact, merged in any order; and its file."""

from __future__ import annotations

from onnxfq.calibration.statistics.bins import BIN_COUNT, BIN_SHIFT, NEGATIVE, bin_edges
from onnxfq.calibration.statistics.groups import GroupStatistics
from onnxfq.calibration.statistics.statistics import Statistics, wider
from onnxfq.calibration.statistics.tensor import TensorStatistics, empty_state

__all__ = [
    "BIN_COUNT",
    "BIN_SHIFT",
    "GroupStatistics",
    "NEGATIVE",
    "Statistics",
    "TensorStatistics",
    "bin_edges",
    "empty_state",
    "wider",
]

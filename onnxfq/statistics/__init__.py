"""What observers gather of tensors, channels and blocks: exact, merged in any order; and its file."""

from __future__ import annotations

from onnxfq.statistics.bins import BIN_COUNT, BIN_SHIFT, NEGATIVE, bin_edges
from onnxfq.statistics.groups import GroupStatistics
from onnxfq.statistics.statistics import DATA_MODULUS, Statistics, wider
from onnxfq.statistics.tensor import TensorStatistics, empty_state

__all__ = [
    "BIN_COUNT",
    "BIN_SHIFT",
    "DATA_MODULUS",
    "GroupStatistics",
    "NEGATIVE",
    "Statistics",
    "TensorStatistics",
    "bin_edges",
    "empty_state",
    "wider",
]

"""Exact, mergeable statistics of tensors, channels and blocks, and their file."""

from __future__ import annotations

from onnxfq.calibration.statistics.bins import BIN_COUNT, BIN_SHIFT, NEGATIVE, bin_edges
from onnxfq.calibration.statistics.grouped_histogram import GroupStatistics
from onnxfq.calibration.statistics.histogram import HISTOGRAM, TensorStatistics
from onnxfq.calibration.statistics.kind import Accumulator, Key, Kind, Observed, Results
from onnxfq.calibration.statistics.registry import KINDS, kinds_of
from onnxfq.calibration.statistics.state import empty_state
from onnxfq.calibration.statistics.statistics import Statistics

__all__ = [
    "Accumulator",
    "BIN_COUNT",
    "BIN_SHIFT",
    "GroupStatistics",
    "HISTOGRAM",
    "KINDS",
    "Key",
    "Kind",
    "NEGATIVE",
    "Observed",
    "Results",
    "Statistics",
    "TensorStatistics",
    "bin_edges",
    "empty_state",
    "kinds_of",
]

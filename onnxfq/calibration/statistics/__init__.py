"""Exact, mergeable statistics of tensors, channels and blocks, and their file."""

from __future__ import annotations

from onnxfq.calibration.statistics.bins import BIN_COUNT as BIN_COUNT
from onnxfq.calibration.statistics.bins import BIN_SHIFT as BIN_SHIFT
from onnxfq.calibration.statistics.bins import NEGATIVE as NEGATIVE
from onnxfq.calibration.statistics.bins import bin_edges as bin_edges
from onnxfq.calibration.statistics.grouped_histogram import GroupStatistics as GroupStatistics
from onnxfq.calibration.statistics.histogram import HISTOGRAM as HISTOGRAM
from onnxfq.calibration.statistics.histogram import TensorStatistics as TensorStatistics
from onnxfq.calibration.statistics.kind import Accumulator as Accumulator
from onnxfq.calibration.statistics.kind import Key as Key
from onnxfq.calibration.statistics.kind import Kind as Kind
from onnxfq.calibration.statistics.kind import Observed as Observed
from onnxfq.calibration.statistics.kind import Results as Results
from onnxfq.calibration.statistics.registry import KINDS as KINDS
from onnxfq.calibration.statistics.registry import kinds_of as kinds_of
from onnxfq.calibration.statistics.state import empty_state as empty_state
from onnxfq.calibration.statistics.statistics import Statistics as Statistics

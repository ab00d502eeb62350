"""Kinds of statistics by name."""

from __future__ import annotations

from typing import Any

from onnxfq.calibration.statistics.channel_moments import CHANNEL_MOMENTS
from onnxfq.calibration.statistics.channel_ranges import CHANNEL_RANGES
from onnxfq.calibration.statistics.grouped_histogram import GROUPED_HISTOGRAM
from onnxfq.calibration.statistics.histogram import HISTOGRAM
from onnxfq.calibration.statistics.input_means import ENDS, MEANS
from onnxfq.calibration.statistics.kind import Kind, Observed
from onnxfq.calibration.statistics.second_moments import MOMENTS

KINDS: dict[str, Kind[Any]] = {
    kind.name: kind
    for kind in (HISTOGRAM, GROUPED_HISTOGRAM, CHANNEL_RANGES, ENDS, MEANS, CHANNEL_MOMENTS, MOMENTS)
}


def kinds_of(observed: Observed) -> list[Kind[Any]]:
    """Return the kinds that are recorded for `observed`."""
    return [kind for kind in KINDS.values() if kind.suits(observed)]

"""Stored weights that are not what their layer needs, the first fault of each."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.diagnosis.causes.stale_weights import find_stale
from onnxfq.diagnosis.causes.weight_factors import find_factor
from onnxfq.diagnosis.causes.weight_grids import find_axis, find_spread, find_unused
from onnxfq.diagnosis.causes.weight_reading import read_weights
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion

FAULTS = (find_axis, find_factor, find_stale, find_spread, find_unused)
"""Faults that are looked for in each weight, in this order."""


def find_weights(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield the first fault of each stored weight."""
    readings = read_weights(candidate)
    for reading in readings:
        suspicions = (find(reading, readings) for find in FAULTS)
        suspicion = next((one for one in suspicions if one is not None), None)
        if suspicion is not None:
            yield suspicion

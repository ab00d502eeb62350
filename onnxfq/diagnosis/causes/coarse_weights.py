"""Weights of few bits that make much of the noise, against the float layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.causes.weight_reading import WeightReading, read_weights, squared_error
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.graph.normalize.experts import find_unit

COARSE = "coarse_weight"
"""The kind."""

MOST = 64
"""Most layers that are measured, those whose weights lose most."""

WIDE = 127
"""Largest number of a MatMulNBits from which it has no few bits."""


def find_coarse(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield the layers with weights of few bits; the experts of a QMoE, which has one format, are one."""
    if candidate.opened is None:
        return
    units: defaultdict[str, list[tuple[WeightReading, NDArray[np.float32]]]] = defaultdict(list)
    for reading in read_weights(candidate):
        node, floats = candidate.index.readers[reading.constant.data][0], reading.floats
        if node.op_type == "MatMulNBits" and reading.constant.codes[1] < WIDE and floats is not None:
            units[find_unit(reading.layer.name)].append((reading, floats))
    losses = {unit: _loss(pairs) for unit, pairs in units.items()}
    for unit in sorted(losses, key=lambda unit: losses[unit], reverse=True)[:MOST]:
        first = units[unit][0][0]
        text = f"{first.constant.kind} leaves {100 * losses[unit] ** 0.5:.2g}% of its values as error"
        edits = [partial(FileEditor.widen, constant=one.constant, values=to) for one, to in units[unit]]
        found = first.suspect(text, "8 bits for this layer", kind=COARSE, is_certain=False)
        tensor = found.tensor if unit == first.layer.name else ""
        yield replace(found, tensor=tensor, node=unit, edits=tuple(edits))


def _loss(pairs: list[tuple[WeightReading, NDArray[np.float32]]]) -> float:
    """Return the squared error of weights over their squares."""
    power = sum(squared_error(floats, np.zeros_like(floats)) for _, floats in pairs)
    return sum(one.error for one, _ in pairs) / max(power, 1e-30)

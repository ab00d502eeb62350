"""`find_columns`: the parts of outputs whose columns or channels differ in size, such as boxes and scores.

A last Concat shows what an output joins; where there is none, only its values do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnxfq.execution.sides import Outputs
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.patterns.parts import MOST_PARTS, OutputPart

LEAST_RATIO = 100.0
"""Least quotient of the root mean squares of two parts: the noise of one hides the other by 40 dB."""

MOST_COLUMNS = 1024
"""Columns of an output; one with more stays whole."""


@dataclass(frozen=True)
class Columns(OutputPart):
    """Neighbouring columns or channels of an output."""

    @property
    def name(self) -> str:
        """Their places, from 0, and the axis."""
        ((axis, (first, end)),) = self.ranges.items()
        assert end is not None
        places = str(first) if end == first + 1 else f"{first}-{end - 1}"
        word = "channel" if axis == 1 else "column"
        return f"{word}{'' if end == first + 1 else 's'} {places}"


def find_columns(
    judged: JudgedTensors, names: Sequence[str], outputs: Sequence[Outputs]
) -> dict[str, tuple[OutputPart, ...]]:
    """Return the parts of deciding outputs that have none, by what a float model returned.

    Probabilities have one unit, and classes of positions too: their sizes tell how often each is found.

    Args:
        judged: of the model.
        names: of the outputs.
        outputs: for each feed, in this order.
    """
    named = list_open(judged)
    found = {}
    for place, name in enumerate(names):
        arrays = [values[place] for values in outputs]
        if name in named and arrays and all(isinstance(one, np.ndarray) for one in arrays):
            parts = _find_in(name, arrays)
            if 1 < len(parts) <= MOST_PARTS:
                found[name] = tuple(parts)
    return found


def list_open(judged: JudgedTensors) -> list[str]:
    """Return the deciding tensors that values may divide."""
    closed = {*judged.parts, *judged.logits, *judged.logits.values(), *judged.sources}
    # A last product of rank 2 may make boxes too.
    return [name for name in judged.deciding if name not in closed and judged.classes.get(name) != 3]


def with_columns(judged: JudgedTensors, columns: Mapping[str, tuple[OutputPart, ...]]) -> JudgedTensors:
    """Return `judged` with these parts of deciding outputs."""
    return replace(judged, parts={**columns, **judged.parts}) if columns else judged


def _find_in(name: str, arrays: Sequence[NDArray[np.float32]]) -> list[OutputPart]:
    rank = arrays[0].ndim
    if rank < 2 or arrays[0].dtype.kind != "f":
        return []
    axis = min((rank - 1, 1), key=lambda one: arrays[0].shape[one])  # the last axis if they are equal
    size = arrays[0].shape[axis]
    if not 1 < size <= MOST_COLUMNS or any(one.ndim != rank or one.shape[axis] != size for one in arrays):
        return []
    others = tuple(other for other in range(rank) if other != axis)
    squares = sum(np.square(one, dtype=np.float64).sum(others) for one in arrays)
    if not np.all(np.isfinite(squares)):
        return []
    return [Columns(name, {axis: one}) for one in split_columns(np.sqrt(squares), 0)]


def split_columns(sizes: NDArray[np.float64], first: int) -> list[tuple[int, int]]:
    """Return the ranges of columns, counted from `first`, that neighbours LEAST_RATIO apart make.

    Every column of one side is so much larger than every one of the other. Columns of zeros belong to either.
    """
    best, place = 0.0, 0
    for at in range(1, len(sizes)):
        left, right = sizes[:at][sizes[:at] > 0], sizes[at:][sizes[at:] > 0]
        if left.size and right.size:
            ratio = max(left.min() / right.max(), right.min() / left.max())
            best, place = (ratio, at) if ratio > best else (best, place)
    if best < LEAST_RATIO:
        return [(first, first + len(sizes))]
    return [*split_columns(sizes[:place], first), *split_columns(sizes[place:], first + place)]

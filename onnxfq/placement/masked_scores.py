"""Floors of scores that only Softmax reads: a mask of -100, -1e9 or of the lowest float leaves them no steps.

Softmax depends on differences. A score that is ln 2^(bits + 1) below the least real one makes a probability
of less than half a step in any row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx

from onnxfq.calibration.statistics import Statistics, TensorStatistics
from onnxfq.calibration.statistics.histogram import HISTOGRAM
from onnxfq.documents.plan import Plan
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.ops import MOVES, REPEATS, SIZES, SPLITS

_KEEPING = {"Cast": slice(0, 1), "Concat": slice(0, None), "Where": slice(1, 3)}
_KEEPING |= dict.fromkeys(MOVES | SPLITS | REPEATS, slice(0, 1))
"""Operator -> inputs that it returns as they are."""
_ADDING = {"Add": slice(0, 2), "Sub": slice(0, 1)}
_PASSED = _KEEPING | _ADDING
_MASKS = -1e3
"""No score is so far below others and counts. A smaller mask, as -100 in shifted windows, is a constant."""


def raise_floors(statistics: Statistics, floors: Mapping[str, float]) -> Statistics:
    """Return `statistics` with the values of each tensor in `floors` raised to its floor."""
    raised = {
        (name, HISTOGRAM.name): one.raise_to(floors[name])
        for name, one in statistics.tensors.items()
        if name in floors
    }
    return replace(statistics, values={**statistics.values, **raised}) if raised else statistics


def find_floors(model: Model, plan: Plan, statistics: Statistics) -> dict[str, float]:
    """Return the floor of each tensor whose masks Softmax alone reads, constants included."""
    finder = _FloorFinder(model.index, statistics, _distance(plan))
    for node in model.index.nodes:
        if node.op_type == "Softmax":
            finder.follow(node.input[0])
    return finder.floors


def _distance(plan: Plan) -> float:
    bits = max((p.spec.qtype.bits for p in plan.activations), default=8)
    return math.log(2.0) * (bits + 1)


class _FloorFinder:
    def __init__(self, index: GraphIndex, statistics: Statistics, distance: float) -> None:
        self._index, self._statistics, self._distance = index, statistics, distance
        self._alone: dict[str, bool] = {}
        self.floors: dict[str, float] = {}

    def follow(self, scores: str) -> None:
        """Add the floors of what the input of a Softmax is made of."""
        seen = self._observed(scores)
        least = None if seen is None else self._least(seen, self._mask_behind(scores))
        if seen is None or least is None:
            return
        spread = seen.rmax - least
        waiting = [(scores, least - self._distance)]
        while waiting:
            name, floor = waiting.pop()
            if not self._is_read_alone(name):
                continue
            self.floors[name] = float(np.float32(min(floor, self.floors.get(name, floor))))
            maker = self._index.makers.get(name)
            if maker is not None and maker.op_type in _KEEPING:
                waiting += [(one, floor) for one in maker.input[_KEEPING[maker.op_type]]]
            elif maker is not None and maker.op_type in _ADDING:
                for one in maker.input[_ADDING[maker.op_type]]:
                    added = self._observed(one)
                    lowest = None if added is None else self._least(added, self._mask_of(one))
                    if lowest is not None:
                        waiting.append((one, lowest - spread - self._distance))

    def _observed(self, name: str) -> TensorStatistics | None:
        """Return the statistics of a tensor, or of what it is moved from; None without any."""
        while name not in self._statistics:
            values, maker = self._index.array(name), self._index.makers.get(name)
            if values is not None:
                return TensorStatistics.from_array(np.asarray(values, np.float32))
            if maker is None or maker.op_type not in MOVES | REPEATS:
                return None
            name = maker.input[0]
        return self._statistics[name]

    def _mask_behind(self, name: str) -> float:
        """Return the limit of masks among scores, to which a mask is added, perhaps before they are moved."""
        maker = self._index.makers.get(name)
        while maker is not None and maker.op_type in MOVES:
            maker = self._index.makers.get(maker.input[0])
        return (
            max(map(self._mask_of, maker.input)) if maker is not None and maker.op_type == "Add" else _MASKS
        )

    def _mask_of(self, name: str) -> float:
        """Return below which number a tensor has masks: of a constant mask half of it.

        Such a mask has zeros in every row, so that each row keeps real scores.
        """
        maker = self._index.makers.get(name)
        while maker is not None and maker.op_type in MOVES:
            name = maker.input[0]
            maker = self._index.makers.get(name)
        values = self._index.array(name)
        if values is None or values.ndim < 2 or values.dtype.kind != "f" or np.any(values.max(axis=-1)):
            return _MASKS
        masked = values[values < 0]
        alike = masked.size and masked.min() == masked.max()
        return max(_MASKS, float(masked[0]) / 2) if alike and masked[0] < -self._distance else _MASKS

    def _least(self, seen: TensorStatistics, masks: float) -> float | None:
        """Return the least value above the masks, which are below `masks`; None without masks."""
        low, high = seen.edges()
        order = np.argsort(low)
        low, high = low[order], high[order]
        wide = low[1:] - high[:-1] > seen.rmax - low[1:] + self._distance
        places = np.flatnonzero(wide & (high[:-1] < masks))
        return float(low[places[-1] + 1]) if places.size else None

    def _is_read_alone(self, name: str) -> bool:
        """Tell whether every way from a tensor leads to a Softmax."""
        index = self._index
        if name not in self._alone:
            readers = index.readers.get(name, [])
            open_ended = not readers or name in index.outputs or name in index.captured
            self._alone[name] = not open_ended and all(self._leads(node, name) for node in readers)
        return self._alone[name]

    def _leads(self, node: onnx.NodeProto, name: str) -> bool:
        if node.op_type in SIZES | {"Softmax"}:
            return True
        part = _PASSED.get(node.op_type)
        if part is None or name not in node.input[part]:
            return False
        return all(self._is_read_alone(one) for one in node.output if one)

"""Floors of scores that only Softmax reads: masks of -100, -1e9, the lowest float or -inf leave no steps.

A summand that was 0 in all data is a mask that hid nothing there, and will elsewhere.

Softmax depends on differences. A score that is ln 2^(bits + 1) below the least real one makes a probability
of less than half a step in any row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from onnxfq.calibration.statistics import Statistics, TensorStatistics
from onnxfq.calibration.statistics.histogram import HISTOGRAM
from onnxfq.documents.plan import Plan
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.ops import MOVES, REPEATS, SIZES, SPLITS
from onnxfq.numerics.spec import QuantSpec

_KEEPING = {"Cast": slice(0, 1), "Concat": slice(0, None), "Where": slice(1, 3)}
_KEEPING |= dict.fromkeys(MOVES | SPLITS | REPEATS, slice(0, 1))
"""Operator -> inputs that it returns as they are."""
_ADDING = {"Add": slice(0, 2), "Sub": slice(0, 1)}
_PASSED = _KEEPING | _ADDING
_MASKS = -1e3
"""No score is so far below others and counts. A smaller mask, as -100 in shifted windows, is a constant."""


def raise_floors(statistics: Statistics, floors: Mapping[str, float]) -> Statistics:
    """Return `statistics` in which the values of each tensor in `floors` begin at its floor."""
    raised = {
        (name, HISTOGRAM.name): one.begin_at(floors[name])
        for name, one in statistics.tensors.items()
        if name in floors
    }
    return replace(statistics, values={**statistics.values, **raised}) if raised else statistics


def find_floors(model: Model, plan: Plan, statistics: Statistics) -> dict[str, float]:
    """Return the floor of each tensor, constants included, where a Softmax of a model has masks."""
    scores = find_masked_scores(model.index)
    return scores.floors(statistics.tensors, (placement.spec for placement in plan.activations))


@dataclass
class MaskedScores:
    """Tensors that Softmax alone reads, and how they are made.

    Attributes:
        scores: inputs of Softmax.
        kept: tensors whose values a tensor consists of.
        summed: summands of a tensor.
        sources: the tensor that a tensor is moved from.
        constants: statistics of constants.
        masks: the number below 0 of each constant that has zeros in every row, and no third number.
    """

    scores: list[str] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    summed: dict[str, list[str]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    constants: dict[str, TensorStatistics] = field(default_factory=dict)
    masks: dict[str, float] = field(default_factory=dict)

    @property
    def tensors(self) -> set[str]:
        """Names of all tensors that Softmax alone reads."""
        parts = (one for made in (self.kept, self.summed) for names in made.values() for one in names)
        return {*self.scores, *parts}

    def floors(
        self, statistics: Mapping[str, TensorStatistics], specs: Iterable[QuantSpec]
    ) -> dict[str, float]:
        """Return the floor of each tensor, constants included, where a Softmax has masks.

        Args:
            statistics: of tensors by name.
            specs: formats of the activations; the widest decides how small a probability counts.
        """
        distance = math.log(2.0) * (max((spec.qtype.bits for spec in specs), default=8) + 1)
        floors: dict[str, float] = {}
        for scores in self.scores:
            seen = self._observed(scores, statistics)
            limit = self._limit_behind(scores, distance)
            least = None if seen is None else _least(seen, distance, limit)
            if seen is not None and least is None and self._has_open_mask(scores, statistics):
                least = seen.rmin
            if seen is None or least is None:
                continue
            spread = seen.rmax - least
            waiting = [(scores, least - distance)]
            while waiting:
                name, floor = waiting.pop()
                floors[name] = float(np.float32(min(floor, floors.get(name, floor))))
                waiting += [(one, floor) for one in self.kept.get(name, ())]
                for one in self.summed.get(name, ()):
                    added = self._observed(one, statistics)
                    limit = self._limit_of(one, distance)
                    lowest = None if added is None else _least(added, distance, limit)
                    if one in statistics and _is_zero(statistics[one]):
                        lowest = 0.0
                    if lowest is not None:
                        waiting.append((one, lowest - spread - distance))
        return floors

    def _has_open_mask(self, scores: str, statistics: Mapping[str, TensorStatistics]) -> bool:
        """Tell whether a summand of scores was 0 in all data."""
        waiting, passed = [scores], set()
        while waiting:
            name = waiting.pop()
            parts = self.summed.get(name, [])
            if any(one in statistics and _is_zero(statistics[one]) for one in parts):
                return True
            passed.add(name)
            waiting += [one for one in (*parts, *self.kept.get(name, ())) if one not in passed]
        return False

    def _limit_behind(self, scores: str, distance: float) -> float:
        """Return below which number scores have masks, which were perhaps added before they were moved."""
        while scores in self.sources:
            scores = self.sources[scores]
        return max([_MASKS, *(self._limit_of(one, distance) for one in self.summed.get(scores, ()))])

    def _limit_of(self, name: str, distance: float) -> float:
        """Return below which number a tensor has masks: of a constant mask half of it."""
        while name in self.sources:
            name = self.sources[name]
        mask = self.masks.get(name, 0.0)
        return max(_MASKS, mask / 2) if mask < -distance else _MASKS

    def _observed(self, name: str, statistics: Mapping[str, TensorStatistics]) -> TensorStatistics | None:
        """Return the statistics of a tensor, or of what it is moved from; None without any."""
        while name not in statistics and name not in self.constants:
            if name not in self.sources:
                return None
            name = self.sources[name]
        return statistics[name] if name in statistics else self.constants[name]


def _is_zero(seen: TensorStatistics) -> bool:
    return seen.rmin == seen.rmax == 0 and not seen.infinities


def _least(seen: TensorStatistics, distance: float, limit: float) -> float | None:
    """Return the least value above the masks, which are below `limit`; None without masks."""
    low, high = seen.edges()
    order = np.argsort(low)
    low, high = low[order], high[order]
    wide = low[1:] - high[:-1] > seen.rmax - low[1:] + distance
    places = np.flatnonzero(wide & (high[:-1] < limit))
    if places.size:
        return float(low[places[-1] + 1])
    return float(low[0]) if seen.infinities and low.size else None


def find_masked_scores(index: GraphIndex) -> MaskedScores:
    """Return the tensors of a graph that Softmax alone reads."""
    inputs = dict.fromkeys(node.input[0] for node in index.nodes if node.op_type == "Softmax")
    found, alone = MaskedScores(), _Readers(index) if inputs else None
    if alone is None:
        return found
    found.scores = [name for name in inputs if alone.are_softmax(name)]
    waiting = list(found.scores)
    while waiting:
        name = waiting.pop()
        values, maker = index.array(name), index.makers.get(name)
        if values is not None:
            found.constants[name] = TensorStatistics.from_array(np.asarray(values, np.float32))
            masked = values[values < 0]
            if values.ndim > 1 and masked.size and masked.min() == masked.max() and not values.max(-1).any():
                found.masks[name] = float(masked[0])
        elif maker is not None and maker.op_type in MOVES | REPEATS and name not in found.sources:
            found.sources[name] = maker.input[0]
            waiting.append(maker.input[0])
        for made, operators in ((found.kept, _KEEPING), (found.summed, _ADDING)):
            if maker is not None and maker.op_type in operators and name not in made:
                parts = maker.input[operators[maker.op_type]]
                made[name] = [one for one in parts if alone.are_softmax(one)]
                waiting += made[name]
    return found


class _Readers:
    """Readers of the tensors of a graph, and whether every way from them leads to a Softmax."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._leading: set[int] = set()
        for node in reversed(index.nodes):  # readers stand behind what they read
            ends = node.op_type in SIZES | {"Softmax"}
            if ends or (node.op_type in _PASSED and all(self.are_softmax(one) for one in node.output if one)):
                self._leading.add(id(node))

    def are_softmax(self, name: str) -> bool:
        """Tell whether every way from a tensor leads to a Softmax."""
        index = self._index
        readers = index.readers.get(name, [])
        if not readers or name in index.outputs or name in index.captured:
            return False
        return all(id(node) in self._leading and self._is_passed(node, name) for node in readers)

    def _is_passed(self, node: onnx.NodeProto, name: str) -> bool:
        return node.op_type not in _PASSED or name in node.input[_PASSED[node.op_type]]

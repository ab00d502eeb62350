"""`AccuracyTarget`: the accuracy that a quantized model must keep or is repaired to, and its measurement.

Half of the data chooses what stays in float, the other half proves the result. Measured on the data that
chose, a promise could be kept by chance.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from onnxfq.choices import REPAIR_AUTO, THOROUGH, RepairWord
from onnxfq.data import Data, DrawnInputs, Feed
from onnxfq.data.labels import Labels
from onnxfq.documents.promise import Promised
from onnxfq.documents.sensitivity import FLOAT, WEIGHTS
from onnxfq.errors import DataError, ModelError
from onnxfq.execution.toggled_segments import State
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.judging.samples import split_samples
from onnxfq.judging.task_metric import Run, TaskMetric
from onnxfq.layers.quantizer_toggles import QuantizerToggles
from onnxfq.metrics import Metric, check_labels
from onnxfq.numerics.intervals import largest_drop
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.targets.recipes import RECIPES

_ROUNDING = 1e-9
"""Relative difference of two sums of equal terms; a drop of exactly the limit is kept."""

_LEAST = {"min_sqnr": 0, "max_drop": 0, "weight_bits": 0, "max_bytes": 1}
"""Least value of each promise."""

_FEWEST = 4
"""Rows of one half that a promised drop of top-1 should be; with fewer, chance decides."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AccuracyTarget:
    """Accuracy or size that a quantized model must keep, if any, and what is tried for it.

    Attributes:
        min_sqnr: SQNR in dB of the worst part of the outputs, as the summary has it.
        max_drop: most that the metric may lose against the float model: percentage points of top-1 accuracy
            with `labels` alone, else in the unit of `metric`.
        weight_bits: most bits of a quantized weight on average, without scales; the layers that gain most for
            their size get the formats of `fallback`, as many as fit.
        max_bytes: most bytes of the file with its data, likewise.
        labels: class numbers of all samples of the data in order, an array or a list, or a file of them.
        metric: a function, or its name as `package.module:function`; it is called with an iterator over the
            outputs of each sample as {name: array}, and the labels of their rows or, without labels, an
            iterable of the samples. Nobody can write into these arrays. It returns a number, higher is
            better.
        fallback: "float"; "weights" for quantized weights with float activations; or what these layers get
            instead: a number format, such as int16 for ONNX Runtime or float8e4m3fn for TensorRT, or the
            formats of a built-in recipe by its name. The target must take it. With a promise several, with
            commas between: each layer gets the one by which the promise costs least. Without a promise,
            repair gives it to the layers whose outputs gain by it, at any accuracy.
        repair: None for no remedy that the recipe does not ask for. Otherwise calibrators, cross-layer
            equalization and rounding by moments are tried below the aim, alone and combined. Then activations
            are smoothed, if the data can be read again, and without a promise a few layers stay in float, up
            to one percent of the multiply-adds for each missing dB. The aim is the promised SQNR or these dB;
            "auto" stands for 20 dB if activations are quantized. "thorough" is "auto" without a budget of
            time, and tries what costs nothing at run time at any accuracy. Encodings of another tool are used
            as they are.

    Raises DataError for options that do not go together, SpecError for an unknown format.
    """

    min_sqnr: float | None = None
    max_drop: float | None = None
    labels: Labels | None = None
    metric: str | Metric | None = None
    fallback: str = FLOAT
    weight_bits: float | None = None
    max_bytes: int | None = None
    repair: float | RepairWord | None = REPAIR_AUTO

    @staticmethod
    def of(given: AccuracyTarget | None, data: Data | None) -> AccuracyTarget:
        """Return `given`, or no target. Raises DataError for an accuracy that drawn inputs cannot prove."""
        target = given or AccuracyTarget()
        if isinstance(data, DrawnInputs) and (target.min_sqnr is not None or target.max_drop is not None):
            raise DataError(
                "inputs that are drawn prove no accuracy on real data; give data, or leave the promise out"
            )
        return target

    @property
    def is_target(self) -> bool:
        """Whether an accuracy or a size must be kept."""
        return any(one is not None for one in self._promises)

    @property
    def _promises(self) -> tuple[float | None, ...]:
        return self.min_sqnr, self.max_drop, self.weight_bits, self.max_bytes

    @property
    def fits_size(self) -> bool:
        """Whether a size is promised."""
        return self.weight_bits is not None or self.max_bytes is not None

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The formats of `fallback`, each once."""
        return tuple(dict.fromkeys(name.strip() for name in str(self.fallback).split(",")))

    def __post_init__(self) -> None:
        """Refuse options that do not go together."""
        measured = self.labels is not None or self.metric is not None
        if sum(one is not None for one in self._promises) > 1:
            raise DataError("a promise is min_sqnr, max_drop, weight_bits or max_bytes; give one of them")
        if isinstance(self.repair, str) and self.repair not in (REPAIR_AUTO, THOROUGH):
            raise DataError(f"repair is {self.repair!r}; give dB, None, {REPAIR_AUTO!r} or {THOROUGH!r}")
        if self.is_target and not isinstance(self.repair, str | None):
            raise DataError(
                f"repair is {self.repair:g} dB, and a promise has its own aim; leave one of them out"
            )
        if self.max_drop is not None and not measured:
            raise DataError(
                "max_drop needs labels or a metric to measure the drop; give one, or use min_sqnr"
            )
        if self.max_drop is None and measured:
            raise DataError("labels and a metric measure a promised max_drop; give it too, or leave them out")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise DataError(f"{name} is {value:g}; give a number of at least {least}")
        check_labels(self.metric, self.labels is not None)
        for name in self.fallbacks:
            if name not in (FLOAT, WEIGHTS, *RECIPES):
                qtype_by_name(name)
        if len({*self.fallbacks} - {FLOAT}) > 1 and not self.is_target:
            raise DataError(
                f"repair gives layers one format, and fallback names {', '.join(self.fallbacks)}; give one, "
                "or a promise, which takes several"
            )
        if self.weight_bits is not None and {FLOAT, WEIGHTS} & {*self.fallbacks}:
            raise DataError(
                "weight_bits needs the wider format of some layers; give fallback: a number format, or a "
                "recipe, as tensorrt-int8-weights for tensorrt-int4, and genai-int8 for genai-int4"
            )


class PromiseProof(NamedTuple):
    """Lower end of an interval, which decides about a promise, its figure as text, and the answer."""

    value: float
    text: str
    answer: Promised | None = None


class SqnrAim:
    """SQNR in dB of the worst part of the outputs on a few of the kept samples; the judge proves it.

    Attributes:
        measure: name of what is measured, with its unit.
        wanted: the least value that keeps the promise.
    """

    measure = "dB"

    def __init__(self, wanted: float, choosing: Sequence[Feed], proving: Sequence[Feed]) -> None:
        """Take the samples that choose and those that prove. Raises DataError without any."""
        self.wanted = wanted
        self.choosing, self.proving = choosing, proving
        if not self.choosing:
            raise DataError("measuring the noise of layers needs data; give data")

    def choose(self, board: QuantizerToggles, state: State) -> float:
        """Return the SQNR on the samples that choose."""
        return ratio_db(1.0, board.noise(self.choosing, [state])[0])


class MetricAim:
    """Metric of a task over all data, less than the float model's by at most the promised drop.

    Values are differences from the float model on the same half: 0 means no drop.
    """

    def __init__(self, wanted: float, task: TaskMetric) -> None:
        """Name what is measured; nothing is measured yet.

        Args:
            wanted: the least difference from the float model, at most 0.
            task: the metric.
        """
        self.wanted, self._task = wanted, task
        self.measure = f"{task.name} against float"

    @cached_property
    def _float(self) -> tuple[float, float]:
        task = self._task
        if task.is_top1 and 100 / task.rows * 2 > -self.wanted / _FEWEST:
            log.warning(
                "%d labelled rows, half of which prove %g points: one row is %.2g points, so that chance may "
                "decide; give more labelled data",
                task.rows,
                -self.wanted,
                200 / task.rows,
            )
        return task.measure_float(0), task.measure_float(1)

    def choose(self, board: QuantizerToggles, state: State) -> float:
        """Return the metric on the half that chooses, less the float model's."""
        return self._rise(board.set(state), 0)

    def prove(self, run: Run, halves: Sequence[int] = (1,)) -> PromiseProof:
        """Return the metric on the half that proves, or on both for a model that none has chosen.

        It is less by the float model's. The largest drop of top-1 in the interval decides, or the mean of
        both halves of another metric: they have the same size.
        """
        task = self._task
        if not task.is_top1:
            rise = sum(self._rise(run, half) for half in halves) / len(halves)
            before = sum(self._float[half] for half in halves) / len(halves)
            count = sum(map(task.count_samples, halves))
            return PromiseProof(rise, f"{rise:.4g} (no interval)", self._answer(before, rise, None, count))
        worse, better, rows, right = map(sum, zip(*(task.compare_rows(run, h) for h in halves), strict=True))
        rise, low = (100 * points / max(rows, 1) for points in (better - worse, -largest_drop(worse, better)))
        kept = self.wanted if abs(low - self.wanted) < 100 * _ROUNDING else low
        ends = (-100 * largest_drop(better, worse) / max(rows, 1) + 0.0, -low + 0.0)
        answer = self._answer(100 * right / max(rows, 1), rise, ends, rows)
        return PromiseProof(kept, f"{rise:.4g} (no less than {low:.4g})", answer)

    def _answer(self, before: float, rise: float, ends: tuple[float, float] | None, count: int) -> Promised:
        """Return the answer: the float model has `before`, and the drop from there has these ends."""
        name = "top-1" if self._task.is_top1 else self._task.name.removeprefix("metric ")
        sign = -1.0 if name.startswith("-") else 1.0  # the metric counts errors
        return Promised(
            measure=name.removeprefix("-"),
            unit="%" if self._task.is_top1 else "",
            allowed=-self.wanted,
            value=sign * (before + rise),
            reference=sign * before,
            lost=-rise + 0.0,
            interval=ends,
            samples=count,
        )

    def _rise(self, run: Run, half: int) -> float:
        before = self._float[half]
        rise = self._task.measure(run, half) - before
        return rise if abs(rise - self.wanted) > _ROUNDING * abs(before) else self.wanted


Aim = SqnrAim | MetricAim
"""A promise, measured: how far a state of the switches is above what was promised."""


def open_aim(
    promise: AccuracyTarget, kept: Sequence[Feed], task: TaskMetric | None, judged: JudgedTensors
) -> Aim:
    """Return how to measure `promise`, an SQNR or a drop of `task`, of a model that is `judged`.

    Raises DataError without data, ModelError for an SQNR that tells nothing about a part of the model.
    """
    if promise.max_drop is None or task is None:
        assert promise.min_sqnr is not None
        if judged.unjudged:
            why = judged.explain_unjudged()
            raise ModelError(
                f"{promise.min_sqnr:g} dB cannot be promised: {why}; promise max_drop of a metric"
            )
        split = split_samples(kept)
        return SqnrAim(promise.min_sqnr, split.choosing, split.promised)
    return MetricAim(-promise.max_drop, task)

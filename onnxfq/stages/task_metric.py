"""`TaskMetric`: metric of a task for states of the switches, on either half of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.data.functions import FUNCTION_NAME, faults_of, import_function
from onnxfq.data.labels import Labels, count_right, predict_classes, read_labels, refuse_label_count
from onnxfq.errors import DataError
from onnxfq.stages.quantize_inputs import QuantizeInputs
from onnxfq.stages.switchboard import Switchboard
from onnxfq.stages.switched_segments import State

Outputs = Mapping[str, NDArray[Any]]
Metric = Callable[[Iterator[Outputs], Any], float]
"""Takes the outputs of each feed in order, and the labels of their rows or, without labels, the feeds."""


def check_metric_name(metric: str | Metric | None) -> None:
    """Raise DataError for a name other than `package.module:function`."""
    if isinstance(metric, str) and not FUNCTION_NAME.fullmatch(metric):
        raise DataError(f"metric {metric!r} must be package.module:function")


class TaskMetric:
    """Metric on the outputs of a model; higher is better.

    Attributes:
        name: of the metric, with its unit.
        is_top1: whether labels alone are given, so that it is the percentage of right classes.
    """

    def __init__(
        self,
        metric: str | Metric | None,
        labels: Labels | None,
        board: Switchboard,
        inputs: QuantizeInputs,
        limited: bool,
    ) -> None:
        """Name the metric; nothing is measured yet.

        Args:
            metric: as in `Promise`; None is top-1 accuracy.
            labels: as in `Promise`.
            board: a session of the model.
            inputs: with all data, which is read once for each measurement.
            limited: whether the data is the first of more, and so are its labels.

        Raises DataError without data, or for labels or a metric that cannot be read.
        """
        if inputs.feeds is None:
            raise DataError("a promise is measured on data; give data")
        given = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        self.is_top1 = metric is None
        self.name = "points of top-1" if self.is_top1 else f"metric {given}"
        self._metric: Metric = _top1
        if metric is not None:
            self._metric = import_function(metric, "--metric") if isinstance(metric, str) else metric
        self._labels = None if labels is None else read_labels(labels)
        self._feeds, self._board, self._limited = inputs.feeds.source, board, limited
        self._float: dict[int, float] = {}

    @property
    def rows(self) -> int:
        """Number of labelled rows of all data. Raises DataError if there are more rows than labels."""
        return self._places[-1].stop if self._places else 0

    @cached_property
    def _places(self) -> list[slice]:
        """Places of the labels of each feed."""
        board, labels = self._board, self._labels
        assert labels is not None
        first = board.results[0]
        made = board.run(self._feeds, board.nothing)
        rows = [predict_classes(one[first], first).size for one in made]
        ends = np.cumsum([0, *rows]).tolist()
        if ends[-1] > labels.size or (ends[-1] < labels.size and not self._limited):
            raise refuse_label_count(labels, str(ends[-1]), first)
        return [slice(low, high) for low, high in pairwise(ends)]

    def measure_float(self, half: int) -> float:
        """Return the value of the float model on one half of the data, 0 or 1, which is measured once."""
        if half not in self._float:
            self._float[half] = self.measure(self._board, self._board.nothing, half)
        return self._float[half]

    def measure(self, board: Switchboard, state: State, half: int) -> float:
        """Return the value of a state of `board` on one half of the data, 0 or 1.

        Raises DataError if the metric fails or returns no finite number.
        """
        feeds = Half(self._feeds, half)
        truth: Any = feeds
        if self._labels is not None:
            places = [place for number, place in enumerate(self._places) if _half(number) == half]
            truth = np.concatenate([self._labels[place] for place in places] or [self._labels[:0]])
        with faults_of(self.name):
            value = self._metric(board.run(feeds, state), truth)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"{self.name} returned {value!r:.80}; return a finite number")
        return number


@dataclass(frozen=True)
class Half:
    """One half of feeds; every iteration reads them all."""

    feeds: Iterable[Feed]
    half: int

    def __iter__(self) -> Iterator[Feed]:
        """Yield the feeds of this half in order."""
        return (feed for number, feed in enumerate(self.feeds) if _half(number) == self.half)


def _half(number: int) -> int:
    # The Thue-Morse sequence: both halves get one of each pair, and no period of the data falls into one.
    return number.bit_count() & 1


def _top1(outputs: Iterator[Outputs], labels: NDArray[Any]) -> float:
    """Return the percentage of rows of the first output with the largest element at the label."""
    row = right = 0
    for made in outputs:
        name, first = next(iter(made.items()))
        classes = predict_classes(first, name)
        end = row + classes.size
        right += count_right(classes, labels[row:end], name)
        row = end
    return 100.0 * right / row if row else 0.0

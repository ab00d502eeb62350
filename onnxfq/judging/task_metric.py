"""`TaskMetric`: metric of a task for states of the switches, on either half of the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed, Feeds
from onnxfq.data.digest import sample_digests
from onnxfq.data.inputs import read_only, samples
from onnxfq.data.labels import (
    Labels,
    RightClasses,
    read_truth,
)
from onnxfq.errors import DataError
from onnxfq.layers.quantizer_toggles import QuantizerToggles
from onnxfq.metrics import TAKES, Metric, raise_metric, read_value
from onnxfq.metrics.classes import predict_classes, refuse_label_count, top1
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.support.user_code import faults_of

log = logging.getLogger(__name__)


Run = Callable[[Iterable[Feed]], Iterator[Feed]]
"""A model with a state of its switches, or in the runtime of its target: outputs by name for each feed."""


class TaskMetric:
    """Metric on the outputs of a model; higher is better, and a metric of errors counts negative.

    Attributes:
        name: of the metric, with its unit.
        is_top1: whether labels alone are given, so that it is the percentage of right classes.
    """

    def __init__(
        self,
        metric: str | Metric | None,
        labels: Labels | None,
        board: QuantizerToggles,
        inputs: QuantizeSession,
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
        metric = None if metric == "top1" else metric  # with the interval of its rows
        self.is_top1, self.name = metric is None, "points of top-1"
        self._metric: Metric = top1
        if metric is not None:
            name, self._metric = raise_metric(metric)
            self.name = f"metric {name}"
        self._labels = None if labels is None else read_truth(labels, metric)
        self._feeds, self._board, self._limited = inputs.feeds.source, board, limited
        self._float: dict[int, float] = {}
        self._right: dict[int, NDArray[np.bool_]] = {}

    @property
    def rows(self) -> int:
        """Number of labelled rows of all data. Raises DataError if there are more rows than labels."""
        return sum(place.stop - place.start for place in self._parts.places)

    @cached_property
    def _parts(self) -> _Parts:
        """Halves of the samples, equal to one: every second one in the order of their digests and labels.

        Neither the order of the data nor its batches move a sample to the other half.
        """
        digests: list[int] = []
        labels, inputs = self._labels, self._feeds.inputs

        def read() -> Iterator[Feed]:
            for feed in self._feeds:
                digests.extend(sample_digests(feed, inputs))
                yield from samples(feed, inputs)

        places: list[slice] = []
        if labels is None:
            for _ in read():
                pass
            order = sorted(range(len(digests)), key=digests.__getitem__)
        else:
            rows = self._count_rows(labels, read()) if self.is_top1 else self._share_labels(labels, read())
            places = [slice(low, high) for low, high in pairwise(np.cumsum([0, *rows]).tolist())]
            order = sorted(
                range(len(digests)), key=lambda at: (digests[at], str(labels[places[at]].tolist()))
            )
        halves = [0] * len(order)
        for place, number in enumerate(order):
            halves[number] = place % 2
        return _Parts(halves, places)

    def _count_rows(self, labels: NDArray[Any], feeds: Iterable[Feed]) -> list[int]:
        """Return the rows of the first output that each sample has, and log what is odd in their labels."""
        board = self._board
        classes = RightClasses(labels, board.results[0])
        rows = [classes.add(made[classes.output]).size for made in self._run_float(feeds)]
        if classes.rows < labels.size and not self._limited:
            raise refuse_label_count(labels, str(classes.rows), classes.output)
        for note in classes.notes():
            log.warning(note)
        return rows

    def _share_labels(self, labels: NDArray[Any], feeds: Iterable[Feed]) -> list[int]:
        """Return how many labels each sample has: equally many, whatever rows outputs have."""
        count = sum(1 for _ in feeds)
        each = 1 if self._limited and len(labels) >= count else len(labels) // max(count, 1)
        if not self._limited and each * count != len(labels):
            raise DataError(
                f"{len(labels)} labels for {count} samples; give one label, or equally many, for each"
            )
        return [each] * count

    def count_samples(self, half: int) -> int:
        """Return the number of samples of one half."""
        return self._parts.halves.count(half)

    def measure_float(self, half: int) -> float:
        """Return the value of the float model on one half of the data, 0 or 1, which is measured once."""
        if half not in self._float:
            self._float[half] = self.measure(self._run_float, half)
        return self._float[half]

    def _run_float(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        return self._board.run(feeds, self._board.nothing)

    def measure(self, run: Run, half: int) -> float:
        """Return the value of a model on one half of the data, 0 or 1.

        Raises DataError if the metric fails or returns no finite number.
        """
        part, truth = self._read_half(half)
        with faults_of(self.name, takes=TAKES):
            value = self._metric(map(read_only, run(part)), truth)
            return read_value(value, self.name)

    def compare_rows(self, run: Run, half: int) -> tuple[int, int, int, int]:
        """Return the rows of a half: right in float alone, in the model alone, all, right in float."""
        if half not in self._right:
            self._right[half] = self._find_right(self._run_float, half)
        before, after = self._right[half], self._find_right(run, half)
        return int((before & ~after).sum()), int((after & ~before).sum()), before.size, int(before.sum())

    def _find_right(self, run: Run, half: int) -> NDArray[np.bool_]:
        """Return which labelled rows of one half have the largest element at the label."""
        part, truth = self._read_half(half)
        firsts = (next(iter(made.items())) for made in run(part))
        found = [predict_classes(array, name) for name, array in firsts]
        return np.asarray(np.concatenate(found or [truth[:0]]) == truth, np.bool_)

    def _read_half(self, half: int) -> tuple[Half, Any]:
        """Return the samples of one half, and their labels or else the samples."""
        parts = self._parts
        part = Half(self._feeds, parts.halves, half)
        if self._labels is None:
            return part, part
        mine = [place for place, other in zip(parts.places, parts.halves, strict=True) if other == half]
        return part, np.concatenate([self._labels[place] for place in mine] or [self._labels[:0]])


class _Parts(NamedTuple):
    """Half of each sample, 0 or 1, and the places of its labels; none without labels."""

    halves: list[int]
    places: list[slice]


@dataclass(frozen=True)
class Half:
    """The samples of one half of `feeds`, one a feed; every iteration reads all of them.

    Attributes:
        feeds: the data.
        halves: of each sample, 0 or 1.
        half: the one to read.
    """

    feeds: Feeds
    halves: Sequence[int]
    half: int

    def __iter__(self) -> Iterator[Feed]:
        """Yield the samples of this half in order, for a user who must not write into them."""
        inputs = self.feeds.inputs
        every = (sample for feed in self.feeds for sample in samples(feed, inputs))
        return (read_only(one) for one, half in zip(every, self.halves, strict=True) if half == self.half)

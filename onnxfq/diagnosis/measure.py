"""`Measure`: the figure by which repairs are judged: SQNR in dB, or the metric of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from onnxfq.data import Feed
from onnxfq.data.labels import Labels, read_truth
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.errors import DataError
from onnxfq.graph.signature import output_names
from onnxfq.metrics import TAKES, Metric, check_labels, raise_metric, read_value
from onnxfq.metrics.classes import top1
from onnxfq.runtime.session import Session
from onnxfq.stages.score import score_models
from onnxfq.support.user_code import faults_of


@dataclass(frozen=True)
class Measure:
    """Figure of a file: SQNR, or the metric of a task.

    Attributes:
        candidate: with the samples and the outputs in float.
        threads: of sessions.
        unit: of the figures.
        function: metric of the task; None for the SQNR.
        labels: for the metric; None without.
    """

    candidate: FileCandidate
    threads: int
    unit: str = "dB"
    function: Metric | None = None
    labels: Any = None

    @staticmethod
    def of(
        candidate: FileCandidate, threads: int, metric: str | Metric | None, labels: Labels | None
    ) -> Measure:
        """Return the measure; labels alone are for top-1 accuracy. Raises DataError without data."""
        check_labels(metric, labels is not None)
        if metric is None and labels is None:
            return Measure(candidate, threads)
        if candidate.opened is None:
            raise DataError("labels and a metric are measured on data; give data")
        truth = None if labels is None else read_truth(labels, metric)
        unit, function = ("points of top-1", top1) if metric is None else raise_metric(metric)
        return Measure(candidate, threads, unit, function, truth)

    def reported(self, proto: onnx.ModelProto) -> float:
        """Return the figure that is reported: on samples that chose nothing, or of the task on all."""
        proving = self.candidate.split.proving
        return self.sqnr_db(proto, proving) if self.function is None else self._task(proto)

    def sqnr_db(self, proto: onnx.ModelProto, feeds: Sequence[Feed]) -> float:
        """Return the SQNR in dB of the worst output of a file; -inf if an output is NaN."""
        candidate = self.candidate
        found = score_models(
            candidate.form.proto,
            {candidate.source: proto},
            feeds,
            threads=self.threads,
            device="cpu",
            exact=False,
            expected=candidate.expected(feeds),
            judged=candidate.toggles.judged,
        )
        return found.candidates[0].lowest_db

    def _task(self, proto: onnx.ModelProto) -> float:
        """Return the metric on all samples that were read."""
        assert self.function is not None
        session, names, feeds = Session(proto, self.threads), output_names(proto), self.candidate.feeds
        outputs = (dict(zip(names, session.run(feed, list(names)), strict=True)) for feed in feeds)
        truth: Any = feeds
        if self.labels is not None:
            rows = sum(len(next(iter(feed.values()))) for feed in feeds)
            truth = self.labels[:rows]
            if len(truth) < rows:
                raise DataError(f"there are {len(truth)} labels for {rows} samples; give a label for each")
        with faults_of(self.unit, takes=TAKES):
            return read_value(self.function(outputs, truth), self.unit)

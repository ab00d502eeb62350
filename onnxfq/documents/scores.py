"""`Evaluation`: scores of candidates against a reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from onnxfq.choices import LOW_SQNR_DB as LOW_SQNR_DB
from onnxfq.documents.proof import Proof, name_figure
from onnxfq.documents.timing import Timing
from onnxfq.metrics.outputs import EqualCounts
from onnxfq.support.records import Count, Document, PrintedRecord, Record, Share
from onnxfq.support.tables import table_lines

FORMAT_KEY = "onnxfq.format/"
"""Metadata prefix of a tensor whose storage type is wider than its number format."""


LASTING = 4
"""How many times as long as the longest recording a stream is for which a promise must hold, by the growth of
its error there."""

LOGITS = "logits "
"""Begins the name of the part that logits are."""


class Drift(Record):
    """How the error of a network that feeds its state back grows along a stream.

    Attributes:
        loss_db: dB that the SQNR loses in a hundred feeds, at the end of the longest recording.
        feeds: of that recording, as far as it was run.
    """

    loss_db: float
    feeds: Count

    def __str__(self) -> str:
        """Return `loses 3 dB a hundred feeds, still at feed 600`."""
        return f"loses {self.loss_db:.2g} dB a hundred feeds, still at feed {self.feeds}"


class OutputScore(Record):
    """One output, or a part of it, of one candidate against the reference.

    Attributes:
        part: name of the part; empty for the whole output.
        sqnr_db: signal to quantization noise in dB, inf when equal. Where state is fed back along a stream,
            the lowest of its windows: the signal of all windows to the noise of one.
        interval: ends in dB of its 90% interval, as an estimate of the SQNR of all samples; None where the
            samples tell none, as a single one does. 0 dB is as low as it reaches below a better figure.
        cosine: of the angle between both.
        largest_error: max |reference - candidate|.
        top1_agreement: share of rows with the same argmax over the last axis; None unless that has classes.
        decides: whether the SQNR of the model is the lowest of this and others like it.
        moved: whether its elements change places with its values, as boxes that are selected do; such an
            SQNR judges nothing.
        made_by: node or module behind an inner tensor whose name an exporter made; else empty.
        stands_for: outputs that are chosen by this inner tensor, which judges in their place.
        drift: how the error grows along a stream; None where it does not.
        noises: squared error of each feed, or each window of a stream, over the squared reference of all;
            not in files.
    """

    output: str
    part: str = ""
    sqnr_db: float
    interval: tuple[float, float] | None = None
    cosine: float
    largest_error: float
    top1_agreement: Share | None = None
    decides: bool = True
    moved: bool = False
    made_by: str = ""
    stands_for: tuple[str, ...] = ()
    drift: Drift | None = None
    noises: tuple[float, ...] = Field((), exclude=True, repr=False)

    def __str__(self) -> str:
        """Return the figure as `41.2 dB at 'y'`, with the outputs that it stands for."""
        others = f", which gives {', '.join(map(repr, self.stands_for))}" if self.stands_for else ""
        part = f", {self.part}" if self.part else ""
        return f"{self.figure} at {self.made_by or repr(self.output)}{part}{others}"

    @property
    def key(self) -> str:
        """The output and its part, which no other score of a candidate has."""
        return f"{self.output}, {self.part}" if self.part else self.output

    @property
    def name(self) -> str:
        """The same for a table, by what makes an inner tensor."""
        return self.key if not self.made_by else f"{self.made_by}, {self.part}".removesuffix(", ")

    @property
    def kind(self) -> str:
        """The word for its kind: outputs, parts or logits."""
        return "outputs" if not self.part else "logits" if self.part.startswith(LOGITS) else "parts"

    @property
    def figure(self) -> str:
        """The SQNR as text, as `33.2 dB (31.9 to 34.6)`."""
        return f"{name_figure(self.sqnr_db)}{name_interval(self.interval)}"

    @property
    def low_db(self) -> float:
        """The lower end of the interval; the SQNR itself without one."""
        return self.sqnr_db if self.interval is None else self.interval[0]

    def lowered(self, lost_db: float) -> OutputScore:
        """Return the score where a runtime loses so many dB."""
        ends = None if self.interval is None else (self.interval[0] - lost_db, self.interval[1] - lost_db)
        noises = tuple(noise * 10 ** (lost_db / 10) for noise in self.noises)
        return self.model_copy(update={"sqnr_db": self.sqnr_db - lost_db, "interval": ends, "noises": noises})


class EqualShare(Record):
    """One output of integers, texts or booleans of one candidate against the reference.

    Attributes:
        equal: share of equal elements, 0 to 1. Where the number of rows differs, the share of rows that both
            have.
        rows_apart: by how many rows the two differ, summed over the feeds.
    """

    output: str
    equal: Share
    rows_apart: Count = 0

    @staticmethod
    def of(output: str, counts: EqualCounts) -> EqualShare:
        """Return the share of counts; 1 for outputs without elements."""
        share = counts.equal / counts.elements if counts.elements else 1.0
        return EqualShare(output=output, equal=share, rows_apart=counts.rows_apart)

    def __str__(self) -> str:
        """Return `equal`, or the share in percent rounded down, with the rows that differ in number."""
        return "equal" if self.equal == 1 else f"{math.floor(self.equal * 1000) / 10:.1f}% equal{self.apart}"

    @property
    def apart(self) -> str:
        """The rows that differ in number, behind the share or the output; "" without any."""
        return f", {self.rows_apart} rows more or less" if self.rows_apart else ""


class SampleScore(Record):
    """One sample of one candidate.

    Attributes:
        sample: its number in the order of the data, from 0; of feeds with several samples the feed's.
        sqnr_db: lowest SQNR in dB of what judges the model, on this sample alone.
        picture: its image as a data URL of PNG; empty unless somebody asked for it.
    """

    sample: Count
    sqnr_db: float
    picture: str = ""


class CandidateScore(Record):
    """Scores of all outputs of one candidate.

    Attributes:
        outputs: those of floats.
        parts: of outputs, and logits in front of a final sigmoid or softmax.
        shares: those of integers, texts and booleans.
        accuracy: share of labels that the first output predicts.
        metric: value of the metric of the task; None without one.
        metric_interval: of what that costs next to the reference, on other rows of the same kind; None for
            metrics that are no mean over rows.
        weight_shares: share of the noise of an output that weights alone make, on the first feeds, by output;
            empty if it was not measured.
        worst_samples: those of lowest SQNR, the lowest first.
        unlike: outputs of other sizes than the reference's, with both shapes, which were not compared; those
            whose rows are selected by values are none.
    """

    candidate: str
    outputs: tuple[OutputScore, ...]
    parts: tuple[OutputScore, ...] = ()
    shares: tuple[EqualShare, ...] = ()
    accuracy: Share | None = None
    metric: float | None = None
    metric_interval: tuple[float, float] | None = None
    tensors: tuple[OutputScore, ...] = ()
    weight_shares: dict[str, float] = {}
    worst_samples: tuple[SampleScore, ...] = ()
    unlike: tuple[str, ...] = ()

    @staticmethod
    def cells(scores: Iterable[OutputScore | EqualShare]) -> list[tuple[str, ...]]:
        """Return rows: output, SQNR or equal share, interval, cosine, largest error, same top-1."""
        return [
            (f"{one.output}{one.apart}", str(one).removesuffix(one.apart), "", "", "", "")
            if isinstance(one, EqualShare)
            else (
                one.name,
                "equal" if one.sqnr_db == math.inf else f"{one.sqnr_db:.2f}",
                "" if one.interval is None else f"{one.interval[0]:.1f} to {one.interval[1]:.1f}",
                f"{one.cosine:.6f}",
                f"{one.largest_error:.4g}",
                "" if one.top1_agreement is None else f"{one.top1_agreement:.4f}",
            )
            for one in scores
        ]

    @property
    def task_figures(self) -> tuple[str, str]:
        """Accuracy and metric as text, empty for those that were not measured."""
        ends = "" if self.metric_interval is None else " ({:.5g} to {:.5g})".format(*self.metric_interval)
        accuracy = "" if self.accuracy is None else f"{self.accuracy:.4f}"
        return accuracy, "" if self.metric is None else f"{self.metric:.6g}{ends}"

    @property
    def judging(self) -> tuple[OutputScore, ...]:
        """The outputs whose SQNR tells how well the model is quantized; of divided ones the parts."""
        return tuple(one for one in (*self.outputs, *self.parts) if one.decides and not one.moved)

    @property
    def worst(self) -> OutputScore | None:
        """The one of them with the lowest SQNR; None without any."""
        return min(self.judging, key=lambda one: one.sqnr_db, default=None)

    def lowered(self, losses: Mapping[str, float]) -> CandidateScore:
        """Return the scores where a runtime loses so many dB of outputs and parts by name."""
        outputs, parts = (
            tuple(one.lowered(losses.get(one.key, 0.0)) for one in scores)
            for scores in (self.outputs, self.parts)
        )
        return self.model_copy(update={"outputs": outputs, "parts": parts})

    @property
    def drifting(self) -> OutputScore | None:
        """The one of them that loses most dB along a stream; None without any."""
        found = [one for one in self.judging if one.drift is not None]
        return max(found, key=lambda one: one.drift.loss_db if one.drift else 0.0, default=None)

    @property
    def lasting_db(self) -> float:
        """The least in dB that a promise may count on, along a stream LASTING times as long as was run."""
        losses = ((one, one.drift) for one in self.judging)
        lasting = (
            one.low_db - (0.0 if drift is None else (LASTING - 1) * drift.feeds / 100 * drift.loss_db)
            for one, drift in losses
        )
        return min(lasting, default=math.inf)

    def drift_lines(self) -> list[str]:
        """Return a line on the growing error of a stream, if it grows."""
        worst = self.drifting
        return [] if worst is None else [f"the error grows along the stream: {worst.output!r} {worst.drift}"]

    @property
    def broken(self) -> tuple[str, ...]:
        """The outputs with infinity or NaN that differ from the reference, each once."""
        return tuple(dict.fromkeys(s.output for s in self.judging if not math.isfinite(s.largest_error)))

    @property
    def lowest_db(self) -> float:
        """The SQNR of the model in dB: the lowest of what decides; inf if nothing was compared."""
        return math.inf if self.worst is None else self.worst.sqnr_db

    @property
    def low_db(self) -> float:
        """The lowest lower end of the intervals of what decides; inf if nothing was compared."""
        return min((one.low_db for one in self.judging), default=math.inf)


class Evaluation(PrintedRecord, Document):
    """Scores of all candidates on one data set (`.json`).

    Attributes:
        metric: name of the metric of the task; empty without one.
        metric_value: of the reference.
        notes: models and outputs that were not compared, with the reason.
        timing: times of the models; None if nobody asked for them.
        folds: parts of the samples, each compared with ranges of the other parts; 0 for one model for all.
        proof: the written file in the runtime of its target; None if nothing was written.
        drawn: whether the inputs were drawn at random: no figure tells anything about real data.
    """

    format: Literal["onnxfq.evaluation/1"] = "onnxfq.evaluation/1"
    reference: str
    feeds: Count
    accuracy: Share | None = None
    candidates: tuple[CandidateScore, ...]
    metric: str = ""
    metric_value: float | None = None
    notes: tuple[str, ...] = ()
    timing: Timing | None = None
    folds: Count = 0
    proof: Proof | None = None
    drawn: bool = False

    @property
    def difference(self) -> str:
        """Outputs of other sizes, or what a runtime computes otherwise; empty for the same model."""
        unlike = [f"{one.candidate}: {line}" for one in self.candidates for line in one.unlike]
        return next(filter(None, (*unlike, "" if self.proof is None else self.proof.difference)), "")

    @property
    def losses(self) -> dict[str, float]:
        """Losses in dB in the runtime of the target, next to the simulation, by output."""
        return {} if self.proof is None else self.proof.losses

    @property
    def lowest_db(self) -> float:
        """The SQNR in dB of the fake-quant model, or less by what the runtime loses; inf if not compared."""
        return min((one.lowered(self.losses).lowest_db for one in self.candidates[:1]), default=math.inf)

    @property
    def worst(self) -> OutputScore | None:
        """The lowest score of the last candidate, which was written, as the runtime has it; None without."""
        return next((one.lowered(self.losses).worst for one in self.candidates[-1:]), None)

    def table(self) -> str:
        """Return the scores as a plain text table, one line per candidate and output, and the notes.

        Columns: SQNR dB, of integers, texts and booleans the share of equal elements; 90% is its interval;
        max error is
        `largest_error`, same top-1 is `top1_agreement`. A candidate is named in its first line.
        """
        heads = ("candidate", "output", "SQNR dB", "90%", "cosine", "max error", "same top-1")
        rows: list[tuple[str, ...]] = [(*heads, "accuracy", self.metric)]
        if self.accuracy is not None or self.metric:
            known = CandidateScore(
                candidate=self.reference, outputs=(), accuracy=self.accuracy, metric=self.metric_value
            )
            rows.append((self.reference, *[""] * 6, *known.task_figures))
        for candidate in self.candidates:
            listed = (candidate.outputs, candidate.parts, candidate.shares, candidate.tensors)
            own = [cells for scores in listed for cells in candidate.cells(scores)]
            for number, cells in enumerate(own):
                first = (candidate.candidate, *cells, *candidate.task_figures)
                rows.append(("", *cells, "", "") if number else first)
        times = [] if self.timing is None else ["", *self.timing.lines()]
        wrong = [f"differs    {self.difference}"] if self.difference else []
        if len(rows) == 1:
            return "\n".join([*wrong, *self.notes, *times])
        used = [any(row[i] for row in rows[1:]) for i in range(len(rows[0]))]
        kept = [[cell for cell, use in zip(row, used, strict=True) if use] for row in rows]
        return "\n".join([*wrong, *table_lines(kept, names=(0, 1)), *self.notes, *times])


def name_interval(interval: tuple[float, float] | None) -> str:
    """Return the interval in brackets behind a figure; "" without one."""
    return "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"

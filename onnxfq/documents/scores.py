"""`Evaluation`: scores of candidates against a reference, as records and table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from onnxfq.choices import LOW_SQNR_DB as LOW_SQNR_DB
from onnxfq.data.outputs import EqualCounts
from onnxfq.support.records import Count, Record, Share, write_document
from onnxfq.support.tables import table_lines


class OutputScore(Record):
    """One output of one candidate against the reference.

    Attributes:
        sqnr_db: signal to quantization noise in dB, inf when equal.
        cosine: of the angle between both.
        largest_error: max |reference - candidate|.
        top1_agreement: share of rows with the same argmax over the last axis, None unless the output is
            [rows, classes] or [batch, positions, classes].
        moved: whether its elements change places with its values, as boxes that are selected do; such an
            SQNR judges nothing.
        stands_for: outputs that are chosen by this inner tensor, which judges in their place.
    """

    output: str
    sqnr_db: float
    cosine: float
    largest_error: float
    top1_agreement: Share | None = None
    moved: bool = False
    stands_for: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the figure as `41.2 dB at 'y'`, with the outputs that it stands for."""
        others = f", which gives {', '.join(map(repr, self.stands_for))}" if self.stands_for else ""
        return f"{self.figure} at {self.output!r}{others}"

    @property
    def figure(self) -> str:
        """The SQNR as text."""
        return "equal" if self.sqnr_db == math.inf else f"{self.sqnr_db:.1f} dB"


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
        rows = f", {self.rows_apart} rows more or less" if self.rows_apart else ""
        return "equal" if self.equal == 1 else f"{math.floor(self.equal * 1000) / 10:.1f} % equal{rows}"


class CandidateScore(Record):
    """Scores of all outputs of one candidate.

    Attributes:
        outputs: those of floats.
        shares: those of integers, texts and booleans.
        accuracy: share of labels that the first output predicts.
        weight_shares: share of the noise of an output that weights alone make, on the first feeds, by output;
            empty if it was not measured.
    """

    candidate: str
    outputs: tuple[OutputScore, ...]
    shares: tuple[EqualShare, ...] = ()
    accuracy: Share | None = None
    tensors: tuple[OutputScore, ...] = ()
    weight_shares: dict[str, float] = {}

    @staticmethod
    def cells(scores: Iterable[OutputScore | EqualShare]) -> list[tuple[str, str, str, str, str]]:
        """Return rows of a table: output, SQNR or equal share, cosine, largest error, same top-1."""
        return [
            (one.output, str(one), "", "", "")
            if isinstance(one, EqualShare)
            else (
                one.output,
                "equal" if one.sqnr_db == math.inf else f"{one.sqnr_db:.2f}",
                f"{one.cosine:.6f}",
                f"{one.largest_error:.4g}",
                "" if one.top1_agreement is None else f"{one.top1_agreement:.4f}",
            )
            for one in scores
        ]

    @property
    def judging(self) -> tuple[OutputScore, ...]:
        """The outputs whose SQNR tells how well the model is quantized."""
        return tuple(one for one in self.outputs if not one.moved)

    @property
    def worst(self) -> OutputScore | None:
        """The one of them with the lowest SQNR; None without any."""
        return min(self.judging, key=lambda one: one.sqnr_db, default=None)


class Evaluation(Record):
    """Scores of all candidates on one data set (`.json`).

    Attributes:
        notes: models and outputs that were not compared, with the reason.
    """

    format: Literal["onnxfq.evaluation/1"] = "onnxfq.evaluation/1"
    reference: str
    feeds: Count
    accuracy: Share | None = None
    candidates: tuple[CandidateScore, ...]
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)

    def table(self) -> str:
        """Return the scores as a plain text table, one line per candidate and output, and the notes.

        Columns: SQNR dB, of integers, texts and booleans the share of equal elements; max error is
        `largest_error`, same top-1 is `top1_agreement`. A candidate is named in its first line.
        """
        rows = [("candidate", "output", "SQNR dB", "cosine", "max error", "same top-1", "accuracy")]
        if self.accuracy is not None:
            rows.append((self.reference, "", "", "", "", "", f"{self.accuracy:.4f}"))
        for candidate in self.candidates:
            own = [*candidate.cells(candidate.outputs), *candidate.cells(candidate.shares)]
            own += candidate.cells(candidate.tensors)
            accuracy = "" if candidate.accuracy is None else f"{candidate.accuracy:.4f}"
            for number, cells in enumerate(own):
                ends = ("", "") if number else (candidate.candidate, accuracy)
                rows.append((ends[0], *cells, ends[1]))
        if len(rows) == 1:
            return "\n".join(self.notes)
        used = [any(row[i] for row in rows[1:]) for i in range(len(rows[0]))]
        kept = [[cell for cell, use in zip(row, used, strict=True) if use] for row in rows]
        return "\n".join([*table_lines(kept, names=(0, 1)), *self.notes])

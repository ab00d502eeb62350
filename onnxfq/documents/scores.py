"""`Evaluation`: scores of candidates against a reference, as records and table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onnxfq.choices import LOW_SQNR_DB as LOW_SQNR_DB
from onnxfq.support.records import Record, write_document
from onnxfq.support.tables import table_lines


class OutputScore(Record):
    """One output of one candidate against the reference.

    Attributes:
        sqnr_db: signal to quantization noise in dB, inf when equal.
        cosine: of the angle between both.
        largest_error: max |reference - candidate|.
        top1_agreement: share of rows with the same argmax over the last axis, None unless the output is
            [rows, classes] or [batch, positions, classes].
    """

    output: str
    sqnr_db: float
    cosine: float
    largest_error: float
    top1_agreement: float | None = None


class CandidateScore(Record):
    """Scores of all outputs of one candidate.

    Attributes:
        accuracy: share of labels that equal the argmax of the first output.
        weight_shares: share of the noise of an output that weights alone make, on the first feeds, by output;
            empty if it was not measured.
    """

    candidate: str
    outputs: tuple[OutputScore, ...]
    accuracy: float | None = None
    tensors: tuple[OutputScore, ...] = ()
    weight_shares: dict[str, float] = {}


class Evaluation(Record):
    """Scores of all candidates on one data set (`.json`).

    Attributes:
        notes: models and outputs that were not compared, with the reason.
    """

    format: Literal["onnxfq.evaluation/1"] = "onnxfq.evaluation/1"
    reference: str
    feeds: int
    accuracy: float | None = None
    candidates: tuple[CandidateScore, ...]
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)

    def table(self) -> str:
        """Return the scores as a plain text table, one line per candidate and output, and the notes.

        Columns: max error is `largest_error`, same top-1 is `top1_agreement`. A candidate is named in its
        first line.
        """
        rows = [("candidate", "output", "SQNR dB", "cosine", "max error", "same top-1", "accuracy")]
        if self.accuracy is not None:
            rows.append((self.reference, "", "", "", "", "", f"{self.accuracy:.4f}"))
        for candidate in self.candidates:
            for number, score in enumerate((*candidate.outputs, *candidate.tensors)):
                first = number == 0
                rows.append(
                    (
                        candidate.candidate if first else "",
                        score.output,
                        f"{score.sqnr_db:.2f}",
                        f"{score.cosine:.6f}",
                        f"{score.largest_error:.4g}",
                        "" if score.top1_agreement is None else f"{score.top1_agreement:.4f}",
                        f"{candidate.accuracy:.4f}" if first and candidate.accuracy is not None else "",
                    )
                )
        if len(rows) == 1:
            return "\n".join(self.notes)
        used = [any(row[i] for row in rows[1:]) for i in range(len(rows[0]))]
        kept = [[cell for cell, use in zip(row, used, strict=True) if use] for row in rows]
        return "\n".join([*table_lines(kept, names=(0, 1)), *self.notes])

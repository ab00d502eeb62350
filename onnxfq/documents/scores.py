"""`Evaluation`: scores of candidates against a reference; layers and tensors of a result with their noise."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onnxfq.choices import LOW_SQNR_DB as LOW_SQNR_DB
from onnxfq.documents.plan import Role
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


Range = tuple[float, float]


class TensorRow(Record):
    """One quantized tensor.

    Attributes:
        role: activation, weight or bias.
        format: number format and granularity.
        bits: of an element.
        calibrator: as the plan names it; `auto` is followed by the method that it took.
        why: the reason for its place in the plan.
        sqnr_db: its own rounding error: exact for weights, estimated from the histogram for activations; None
            for dynamic scales, and for tensors that were not observed.
        middle_db: the same for the values between the first and third quartile of the magnitudes.
        observed: smallest and largest value.
        grid: smallest and largest number on the grid.
        edges: ends of the histogram.
        counts: values in bins of equal width between `edges`.
        thresholds: range by calibrator, where the data decides.
        channels: largest magnitude of each channel, or of runs of channels, where it was recorded.
        equalized_channels: the same after equalization.
        equalization: what equalization did to the tensor; empty if nothing.
    """

    tensor: str
    role: Role
    format: str
    bits: int
    calibrator: str
    why: str
    sqnr_db: float | None = None
    middle_db: float | None = None
    observed: Range | None = None
    grid: Range | None = None
    edges: Range | None = None
    counts: tuple[int, ...] = ()
    thresholds: dict[str, Range] = {}
    channels: tuple[float, ...] = ()
    equalized_channels: tuple[float, ...] = ()
    equalization: str = ""


class LayerRow(Record):
    """One operator that is quantized, or could be.

    Attributes:
        node: its name.
        output: name of its first output.
        module: path of its torch module; empty if the model has none.
        position: place in the graph, from 0.
        quantized: whether it runs in low precision.
        why: the reason for float, empty otherwise.
        tensors: the quantized tensors that it reads.
        input_db: SQNR of its inputs in the running model, before their own rounding; the lowest of them.
        output_db: SQNR of its output in the running model.
        added_db: SQNR of its output if only the noise between inputs and output were there.
        alone_db: SQNR of the outputs of the model with only its group of layers quantized.
        rest_db: the same with all groups but this one quantized.
        multiplies: share of the multiply-adds of the model, 0 to 1.
        before: nearest layers that it reads from.
        after: nearest layers that read from it.
    """

    node: str
    op_type: str
    output: str = ""
    module: str = ""
    position: int
    quantized: bool
    why: str = ""
    tensors: tuple[str, ...] = ()
    input_db: float | None = None
    output_db: float | None = None
    added_db: float | None = None
    alone_db: float | None = None
    rest_db: float | None = None
    multiplies: float | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def impact_db(self) -> float | None:
        """Cost of the layer in dB: at the outputs if that was measured, else at its own output."""
        return self.added_db if self.alone_db is None else self.alone_db


class LayerTable(Record):
    """All layers of a result, the one that costs most first, and their tensors in the order of the plan.

    Attributes:
        multiplies: share of the multiply-adds in low precision, 0 to 1; None if nothing was run.
        weight_bytes: share of the bytes of constants that is quantized.
    """

    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    multiplies: float | None = None
    weight_bytes: float = 0.0

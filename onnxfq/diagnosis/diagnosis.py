"""`Diagnosis`: the causes, the verdict and the table."""

from __future__ import annotations

import textwrap
from typing import Any, Literal

from onnxfq.diagnosis.reading.cause import Cause
from onnxfq.documents.layers import TensorRow
from onnxfq.documents.proof import Proof
from onnxfq.support.records import PrintedRecord
from onnxfq.support.tables import table_lines

LOW_DB = 20.0
"""SQNR below which a file without a single cause has a loss worth a word."""

NOTHING_READ = "nothing was looked at: all quantizers are of kinds that stay as they are"
"""Verdict of a file with quantizers that no cause is looked for in."""


class Diagnosis(PrintedRecord):
    """Result of `diagnose`.

    Attributes:
        source: name of the file.
        verdict: at most three sentences, a line each: the first cause, its repair, and how many there are.
        causes: the most harmful first.
        looked_at: what was looked for.
        not_looked_at: quantizers that no cause is looked for in, by what they are.
        unmatched: quantized tensors that the float model has not.
        quantizers: how many the file has, of activations and of constants.
        samples: of the data.
        unit: of the figures: dB of SQNR on samples that chose nothing, or of the metric on all.
        tensors: values and grids of the activations that causes name.
        before: figure of the file; None without data.
        after: the same with all repairs together; None without a repair.
        written: path of the repaired model; empty if none was written.
        proof: that model in the runtime of its target; None without a target.
    """

    format: Literal["onnxfq.diagnosis/1"] = "onnxfq.diagnosis/1"
    source: str
    verdict: str
    causes: tuple[Cause, ...]
    looked_at: tuple[str, ...]
    not_looked_at: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    quantizers: int
    samples: int
    unit: str = "dB"
    tensors: tuple[TensorRow, ...] = ()
    before: float | None = None
    after: float | None = None
    written: str = ""
    proof: Proof | None = None

    def cells(self) -> list[tuple[str, ...]]:
        """Return the cells of a table of the causes, headings first."""
        head = ("cause", "tensor", f"{self.unit} before", "after", "evidence", "repair")
        rows: list[tuple[str, ...]] = [head]
        for cause in self.causes:
            before, after = ("" if db is None else f"{db:.1f}" for db in (cause.before, cause.after))
            where = cause.tensor or cause.node
            rows.append((cause.kind, where, before, after, cause.evidence, cause.repair))
        return rows

    def table(self) -> str:
        """Return the verdict, and a row for each cause with its evidence and repair below it."""
        wrong = [f"differs    {self.proof.difference}"] if self.proof and self.proof.difference else []
        lines = [*wrong, *_fold(self.verdict.split("\n")), *(self.proof.lines() if self.proof else ())]
        if self.causes:
            rows = self.cells()
            head, *figures = table_lines([row[:4] for row in rows], names=(1,))
            lines += ["", head]
            for line, (*_, evidence, repair) in zip(figures, rows[1:], strict=True):
                lines += [line, *_wrap(evidence, "    "), *_wrap(repair and f"repair: {repair}", "    ")]
            lines.append("")
        if self.unmatched:
            lines += _wrap(f"not in the float model: {', '.join(self.unmatched)}")
        lines += _wrap(f"looked at {self.quantizers} quantizers: {', '.join(self.looked_at)}")
        if self.not_looked_at:
            lines += _wrap(f"not looked at: {', '.join(self.not_looked_at)}")
        return "\n".join(lines)


def _wrap(text: str, indent: str = "") -> list[str]:
    """Return lines of at most 80 characters; names and commands stay whole."""
    lines = textwrap.TextWrapper(80, indent, indent or "  ", break_long_words=False, break_on_hyphens=False)
    return lines.wrap(text)


def verdict_of(
    causes: tuple[Cause, ...], before: float | None, after: float | None, unit: str, *, with_float: bool
) -> str:
    """Return at most three lines: the first cause, its repair, how many causes there are.

    with_float: whether the float model was given; without it the rounding of weights is not in the figures.
    """
    if not causes:
        return _without_cause(before, unit, with_float=with_float)
    first, rest = causes[0], []
    if first.before is not None and first.after is not None:
        rest.append(f"{first.before:.1f} {unit} becomes {first.after:.1f} by {first.repair}")
    elif first.repair:
        rest.append(f"repair: {first.repair}")
    if len(causes) > 1:
        both = before is not None and after is not None
        together = f"; all repairs: {before:.1f} {unit} becomes {after:.1f}" if both else ""
        causes_below = "1 more cause" if len(causes) == 2 else f"{len(causes) - 1} more causes"
        rest.append(f"{causes_below} below{together}")
    where = f" of {first.tensor or first.node}" if first.tensor or first.node else ""
    return "\n".join([f"{first.kind.replace('_', ' ')}{where}: {first.evidence}", *rest])


def _fold(lines: list[str]) -> list[str]:
    """Return lines in three of 80 characters, of which the first may take what others leave."""
    most = [4 - len(lines), *[1] * len(lines)]
    how: dict[str, Any] = {"width": 80, "placeholder": " ...", "break_on_hyphens": False}
    return [
        part
        for line, count in zip(lines, most, strict=False)
        for part in textwrap.wrap(line, max_lines=count, **how)
    ]


def _without_cause(before: float | None, unit: str, *, with_float: bool) -> str:
    if before is None:
        return "no fault found without data; give data"
    figure = f"{before:.1f} {unit}"
    if unit == "dB" and before < LOW_DB:
        return (
            f"no single cause found ({figure}): the loss is spread evenly over the quantizers\n"
            "quantize the float model with `onnxfq quantize`, which tries remedies for it"
        )
    if unit == "dB" and not with_float:
        return f"no fault found ({figure} by activations alone; --float adds the loss of weights)"
    return f"no fault found ({figure})"

"""`Trial`: what was tried for a loss of accuracy, and what samples said that did not choose it."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from onnxfq.documents.equalization import Equalization
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.support.records import Amount, Record
from onnxfq.support.tables import table_lines

_WIDTH = 80
"""Columns of a terminal, in which a table of trials is readable."""

_INDENT = " " * 4

_HEADINGS = ("remedy", "result", "unseen dB", "seconds")


class Trial(Record):
    """One remedy on one candidate.

    Attributes:
        remedy: its name.
        is_needed: whether it was tried, or had to be and could not.
        is_kept: whether the result has it.
        before: SQNR of the outputs in dB without it, on samples that did not choose it; None if not measured.
        after: the same with it.
        why: reason why it is not kept, empty otherwise.
        details: what it does, a line each.
        evidence: the measurement that chose it, if there is one to look up.
        seconds: that it took.
    """

    remedy: str
    is_needed: bool = True
    is_kept: bool = False
    before: float | None = None
    after: float | None = None
    why: str = ""
    details: tuple[str, ...] = ()
    evidence: Sensitivity | Equalization | None = None
    seconds: Amount = 0.0

    @property
    def result(self) -> str:
        """Whether it was kept, in a word."""
        return "kept" if self.is_kept else "left"

    @property
    def figures(self) -> str:
        """SQNR without and with it; empty if not measured."""
        measured = self.before is not None and self.after is not None
        return f"{self.before:.1f} -> {self.after:.1f}" if measured else ""

    @property
    def texts(self) -> list[str]:
        """The reason, if there is one, and the details."""
        return [" ".join(text.split()) for text in (self.why, *self.details) if text]


def trial_lines(trials: Sequence[Trial]) -> list[str]:
    """Return a table of the trials that were needed; [] without any.

    The reason or the first detail stands in the last column, and other details stand below.
    """
    needed = [trial for trial in trials if trial.is_needed]
    if not needed:
        return []
    cells = [(trial.remedy, trial.result, trial.figures, f"{trial.seconds:.1f}") for trial in needed]
    heading, *heads = table_lines([_HEADINGS, *cells])
    margin = max(map(len, (heading, *heads))) + 2
    lines = [heading]
    for trial, head in zip(needed, heads, strict=True):
        first, *others = trial.texts or [""]
        beside, *below = _wrap(first, _WIDTH - margin) or [""]
        lines.append(f"{head:<{margin}}{beside}".rstrip())
        lines += [" " * margin + line for line in below]
        lines += [_INDENT + line for text in others for line in _wrap(text, _WIDTH - len(_INDENT))]
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """Return `text` in lines of so many characters; names are not broken."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)

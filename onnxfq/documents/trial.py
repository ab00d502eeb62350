"""`Trial`: what was tried for a loss of accuracy, and what samples said that did not choose it."""

from __future__ import annotations

from onnxfq.documents.equalization import Equalization
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.support.records import Amount, Record


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

    def lines(self) -> list[str]:
        """Return the trial as lines of text: the verdict, then its details; none if it was not needed."""
        if not self.is_needed:
            return []
        verdict = "kept" if self.is_kept else "left"
        figures = ""
        if self.before is not None and self.after is not None:
            figures = f", {self.before:.1f} -> {self.after:.1f} dB on samples that did not choose it"
        why = f": {self.why}" if self.why else ""
        head = f"{self.remedy:<10} {verdict}{figures}{why}"
        return [head, *(f"           {detail}" for detail in self.details)]

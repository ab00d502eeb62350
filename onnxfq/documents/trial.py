"""`Trial`: what was tried for a loss of accuracy, and what samples said that did not choose it."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfq.documents.equalization import Equalization
from onnxfq.documents.promise import Promised
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.support.records import Amount, Record
from onnxfq.support.tables import table_lines

_HEADINGS = ("remedy", "result", "unseen dB", "cost", "seconds", "")
_LEGEND = "unseen dB  SQNR of the worst output, on samples that did not choose the remedy"
_COST = "cost       at run time: new operators, or multiply-adds that take another format"


class Trial(Record):
    """One remedy on one candidate.

    Attributes:
        remedy: its name.
        is_needed: whether it was tried, or had to be and could not.
        is_kept: whether the result has it.
        before: SQNR of the outputs in dB without it, on samples that did not choose it; None if not measured.
        after: the same with it.
        gain: ends in dB of the 90% interval of their difference; None where the samples tell none.
        of_most: whether most samples surely gain, by the ranks of their gains.
        why: reason why it is not kept, empty otherwise.
        details: what it does, a line each.
        evidence: the measurement that chose it, if there is one to look up.
        seconds: that it took.
        price: its cost at run time in words, of a remedy without evidence that has one.
        promised: the answer to a promise, of the trial that keeps it.
    """

    remedy: str
    is_needed: bool = True
    is_kept: bool = False
    before: float | None = None
    after: float | None = None
    gain: tuple[float, float] | None = None
    of_most: bool = False
    why: str = ""
    details: tuple[str, ...] = ()
    evidence: Sensitivity | Equalization | None = None
    seconds: Amount = 0.0
    price: str = ""
    promised: Promised | None = None

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
    def cost(self) -> str:
        """Its cost at run time if it was kept, in words; empty if unknown."""
        if not self.is_kept:
            return ""
        if isinstance(self.evidence, Equalization):
            count = sum(group.inserted for group in self.evidence.groups)
            return f"{count} new Mul" if count else "none"
        chosen = None if self.evidence is None else self.evidence.remedy
        if chosen is None:
            return self.price or ("none" if self.evidence is None else "")
        formats = " and ".join(dict.fromkeys(chosen.formats))
        return f"{chosen.multiplies:.1%} in {formats}" if formats and chosen.multiplies is not None else ""

    @property
    def texts(self) -> list[str]:
        """The reason, if there is one, or the interval of the gain, and the details."""
        ends = self.gain if self.is_kept else None
        gain = "" if ends is None else f"its gain is {ends[0]:.1f} to {ends[1]:.1f} dB"
        gain += "; most samples surely gain" if ends is not None and ends[0] <= 0.0 and self.of_most else ""
        return [" ".join(text.split()) for text in (self.why, gain, *self.details) if text]


def trial_lines(trials: Sequence[Trial]) -> list[str]:
    """Return a table of the trials that were needed, each with its reason and details; [] without any."""
    rows = [_HEADINGS]
    for trial in [trial for trial in trials if trial.is_needed]:
        first, *others = trial.texts or [""]
        rows.append((trial.remedy, trial.result, trial.figures, trial.cost, f"{trial.seconds:.1f}", first))
        rows += [("", "", "", "", "", text) for text in others]
    if len(rows) == 1:
        return []
    measured = any(trial.figures for trial in trials if trial.is_needed)
    costs = any(trial.cost not in ("", "none") for trial in trials if trial.is_needed)
    return [*table_lines(rows), *[_LEGEND] * measured, *[_COST] * costs]

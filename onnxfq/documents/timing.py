"""`Timing`: times of models that took turns in the runtime of a target, and what costs most in slow ones."""

from __future__ import annotations

from onnxfq.support.records import Amount, Count, Record, Share
from onnxfq.support.tables import table_lines

QUANTIZED = "quantized"
"""Name of the written model among the times of `quantize`."""

_NAMED = 3
"""Operators that a line names."""


class OperatorCost(Record):
    """Time of all nodes of one operator, as the runtime executes them after its fusions.

    Attributes:
        nodes: how many there are.
        share: of the time of all nodes.
    """

    op_type: str
    nodes: Count
    share: Share

    def __str__(self) -> str:
        """Return `DequantizeLinear x 66 (41%)`."""
        return f"{self.op_type} x {self.nodes} ({self.share:.0%})"


class TimedModel(Record):
    """Times of one model.

    Attributes:
        model: its name.
        target: whose runtime ran it.
        least_ms: time of a run in the fastest turn, in milliseconds.
        median_ms: the same in the middle timed.
        ratio: median ratio of its time to the reference's, round by round; None for the reference, and if
            the noise does not bear a ratio.
        low: lower end of the interval of 99% confidence of that median.
        high: upper end.
        costs: operators of a model that is slower than the reference, the most costly first.
    """

    model: str
    target: str
    least_ms: Amount
    median_ms: Amount
    ratio: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    costs: tuple[OperatorCost, ...] = ()

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval is above 1; that may be sure where the ratio is not."""
        return self.low is not None and self.low > 1

    @property
    def figure(self) -> str:
        """The ratio and its interval as `0.48 (0.47 to 0.49)`; why there is none, or nothing."""
        if self.low is None or self.high is None:
            return ""
        interval = f"{self.low:.2f} to {self.high:.2f}"
        return f"too noisy ({interval})" if self.ratio is None else f"{self.ratio:.2f} ({interval})"

    def lines(self) -> list[str]:
        """Return a warning if the model is slower than the reference, with what costs most."""
        if not self.is_slower:
            return []
        most = ", ".join(map(str, self.costs[:_NAMED]))
        costs = f"; of its time there, most is in {most}" if most else ""
        return [f"slower     {self.model} is slower than the float model in {self.target}{costs}"]


class Timing(Record):
    """Times of models on one sample.

    Attributes:
        threads: of the runtime; 0 for its own choice.
        models: the reference of each target is in front of what is compared with it.
        notes: models that were not timed, with the reason.
    """

    threads: Count
    models: tuple[TimedModel, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, model: str) -> TimedModel | None:
        """Return the times of a model by name; None if it was not timed."""
        return next((timed for timed in self.models if timed.model == model), None)

    def only(self, model: str) -> Timing:
        """Return the times of one model and its reference, as `QUANTIZED`; without times the reason."""
        own = self.of(model)
        if own is None:
            notes = tuple(note for note in self.notes if note.startswith(f"{model} "))
            return self.model_copy(update={"models": (), "notes": notes})
        beside = next(timed for timed in self.models if timed.target == own.target and timed.high is None)
        renamed = own.model_copy(update={"model": QUANTIZED})
        return self.model_copy(update={"models": (beside, renamed), "notes": ()})

    def cells(self) -> list[tuple[str, ...]]:
        """Return the cells of a table of the times, headings first."""
        rows = [
            (timed.model, timed.target, f"{timed.least_ms:.3f}", f"{timed.median_ms:.3f}", timed.figure)
            for timed in self.models
        ]
        return [("model", "runtime", "least ms", "median ms", "time to float"), *rows]

    def lines(self) -> list[str]:
        """Return a table of the times, the rule of its ratios, what is slow, and the notes."""
        if not self.models:
            return list(self.notes)
        threads = "the runtime's own number of threads" if not self.threads else f"{self.threads} thread(s)"
        rows = ("  " + line for line in table_lines(self.cells(), names=(0,)))
        return [f"time of one sample, {threads}, models in turn:", *rows, *self.remarks(), *self.notes]

    def remarks(self) -> list[str]:
        """Return the rule of ratios if one is not given, and a line for each model that is slow."""
        noisy = any(timed.ratio is None and timed.low is not None for timed in self.models)
        rule = ["a ratio whose 99% interval is wider than 10% is not given; close other programs"]
        slow = [line for timed in self.models for line in timed.lines()]
        return [*(rule if noisy else []), *slow]

"""`Equalization`: what was done to the channels of a model before it was quantized."""

from __future__ import annotations

from typing import Literal

from onnxfq.support.records import Record

Method = Literal["cross_layer", "smooth"]
METHODS: tuple[Method, ...] = ("cross_layer", "smooth")


class EqualizedGroup(Record):
    """Channels that share the choice of their factors.

    Attributes:
        tensor: the first tensor that an operator with weights sums over.
        method: cross_layer if weights make the channels, smooth if a normalization, a product or a new Mul
            does.
        readers: weights that are divided by the factors.
        alpha: share of the difference between channels that the weights take over; None for factors of 1.
        octaves: log2 of the smallest and of the largest factor.
        before_db: expected ratio of signal to noise of the products of `readers`, without factors.
        after_db: the same with the factors.
        inserted: whether a new Mul applies them.
        activations_before: smallest and largest magnitude of the channels of `tensor`.
        activations_after: the same, scaled.
        why: the reason for factors of 1, empty otherwise.
    """

    tensor: str
    method: Method
    readers: tuple[str, ...]
    alpha: float | None = None
    octaves: tuple[int, int] = (0, 0)
    before_db: float
    after_db: float
    inserted: bool = False
    activations_before: tuple[float, float]
    activations_after: tuple[float, float]
    why: str = ""

    def without_factors(self, why: str) -> EqualizedGroup:
        """Return the group with factors of 1, for the reason `why`."""
        same = {"after_db": self.before_db, "activations_after": self.activations_before}
        return self.model_copy(
            update={"alpha": None, "octaves": (0, 0), "inserted": False, "why": why, **same}
        )

    def line(self) -> str:
        """Return the group as a line of text."""
        if self.why:
            return f"{self.method} {self.tensor!r}: left, {self.why}"
        by = f"2^{self.octaves[0]} to 2^{self.octaves[1]}"
        new = ", with a new Mul" if self.inserted else ""
        gain = f"expected {self.before_db:.1f} -> {self.after_db:.1f} dB"
        return f"{self.method} {self.tensor!r}: {by}, alpha {self.alpha:g}{new}; {gain}"


class FactorTrial(Record):
    """The SQNR of the outputs, in dB, on some samples with these methods.

    Attributes:
        methods: what changed channels.
        left: groups that had no factors nevertheless.
        sqnr_db: of all outputs together.
    """

    methods: tuple[Method, ...]
    left: tuple[str, ...] = ()
    sqnr_db: float

    def text(self) -> str:
        """Return the trial as part of a line."""
        but = f" without {len(self.left)} group{'s' * (len(self.left) > 1)}" if self.left else ""
        return f"{' and '.join(self.methods) or 'none'}{but} {self.sqnr_db:.1f} dB"


class Equalization(Record):
    """Equalization of the channels of a model.

    Attributes:
        groups: channels whose factors were chosen.
        trials: comparison of the methods that had to be confirmed; the best was taken.
        why: the reason why nothing was tried, empty otherwise.
    """

    groups: tuple[EqualizedGroup, ...] = ()
    trials: tuple[FactorTrial, ...] = ()
    why: str = ""

    @property
    def changed(self) -> bool:
        """Tell whether any group has factors, so that the model differs from the given one."""
        return any(not group.why for group in self.groups)

    def lines(self, shown: int = 6) -> list[str]:
        """Return a summary as lines of text."""
        if self.why:
            return [f"equalized  {self.why}"]
        changed = [group for group in self.groups if not group.why]
        added = sum(group.inserted for group in changed)
        lines = [
            f"equalized  {len(changed)} of {len(self.groups)} groups of channels, {added} with a new Mul"
            if changed
            else "equalized  nothing: no method gains enough"
        ]
        if self.trials:
            best = max(self.trials, key=lambda one: one.sqnr_db)
            shown_trials = [*self.trials[:2], *(() if best in self.trials[:2] else (best,))]
            rest = len(self.trials) - len(shown_trials)
            worse = f"; {rest} more not better" if rest else ""
            lines.append(f"           on some samples: {', '.join(t.text() for t in shown_trials)}{worse}")
        lines += [f"           {group.line()}" for group in changed[:shown]]
        if len(changed) > shown:
            lines.append(f"           and {len(changed) - shown} more; the result file lists all")
        return lines

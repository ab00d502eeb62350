"""`Promised`: an accuracy that was promised, and what the written model has of it."""

from __future__ import annotations

from onnxfq.support.records import Count, Record

Interval = tuple[float, float]


class Promised(Record):
    """Answer to a promise, on samples that did not choose how it is kept.

    Attributes:
        measure: name of what is measured.
        unit: of the figures, as it follows a number.
        allowed: the most that may be lost, or the least value where `reference` is None.
        value: of the written model.
        reference: value of the float model; None for what is measured against it, as an SQNR is.
        lost: how much worse the value is, higher where the metric counts errors.
        interval: 90% interval of what is lost, or of the value without `reference`; None if unknown.
        samples: rows or samples of the measurement; 0 where nothing was run.
    """

    measure: str
    unit: str = ""
    allowed: float
    value: float
    reference: float | None = None
    lost: float = 0.0
    interval: Interval | None = None
    samples: Count

    def __str__(self) -> str:
        """Return `top-1: float 98.4%, written 98.2%, drop 0.2 of 1 allowed, on 320 samples (90%: ...)`."""
        ends = "" if self.interval is None else f" (90%: {self.interval[0]:.4g} to {self.interval[1]:.4g})"
        figure = f"{self.value:.4g}{self.unit}"
        where = f", on {self.samples} samples{ends}" if self.samples else ""
        if self.reference is None:
            return f"{self.measure}: {figure}, {self.allowed:g}{self.unit} was promised{where}"
        word = "rise" if (self.reference - self.value) * self.lost < 0 else "drop"
        lost = f"{word} {self.lost:.4g} of {self.allowed:g} allowed"
        return f"{self.measure}: float {self.reference:.4g}{self.unit}, written {figure}, {lost}{where}"

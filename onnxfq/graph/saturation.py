"""`ValueLimit`: a Clip or Relu that does the work of the range of a quantizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ends = Literal["low", "high", "both"]


@dataclass(frozen=True)
class ValueLimit:
    """A Clip or Relu in place of a quantizer with one range for a tensor.

    Attributes:
        tensor: its input.
        low: the lower end; None if it has none.
        high: the upper end; None if it has none.
        step: distance between two numbers of the quantizer at the ends.
    """

    tensor: str
    low: float | None
    high: float | None
    step: float

    def find_unreached(self, rmin: float, rmax: float) -> Ends | None:
        """Return the ends that values of the range [rmin, rmax] do not pass by a step."""
        low = self.low is None or rmin >= self.low - self.step
        high = self.high is None or rmax <= self.high + self.step
        return "both" if low and high else "low" if low else "high" if high else None

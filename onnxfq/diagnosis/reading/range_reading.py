"""`RangeReading`: the range of a scale against the values of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.values import GridFit, TensorValues
from onnxfq.numerics.metrics import ratio_db


@dataclass(frozen=True)
class RangeReading:
    """The range of one scale, and its values.

    Attributes:
        group: quantizers with this scale.
        values: of their tensors.
        noise: mean square error of the grid on the values.
    """

    group: Sequence[ActivationQuantizer]
    values: TensorValues
    noise: float

    @staticmethod
    def of(group: Sequence[ActivationQuantizer], values: TensorValues) -> RangeReading:
        """Return the reading of one scale."""
        grid = group[0].grid
        return RangeReading(group, values, values.noise(grid.scale, grid.zero, group[0]))

    @property
    def quantizer(self) -> ActivationQuantizer:
        """The first of the group."""
        return self.group[0]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the group."""
        return tuple(quantizer.number for quantizer in self.group)

    @property
    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ends of the range and of the values, 0 included; of a symmetric grid both sides are one."""
        low, high = self.quantizer.grid.limits
        least, most = min(self.values.low, 0.0), max(self.values.high, 0.0)
        if self.quantizer.is_symmetric:
            reach = max(-least, most)
            return (-high, high), (-reach, reach)
        return (low, high), (least, most)

    @property
    def ratio(self) -> float:
        """Width of the range over the values'; 1 where all values are 0."""
        (low, high), (least, most) = self.ends
        return (high - low) / (most - least) if most > least else 1.0

    @property
    def overrun(self) -> float:
        """How far values leave the range at one end, over their width."""
        (low, high), (least, most) = self.ends
        return max(low - least, most - high, 0.0) / (most - least) if most > least else 0.0

    @property
    def wander(self) -> tuple[float, float]:
        """How far each end differs between two halves of the samples, over the width; the smaller first."""
        (_, _), (least, most) = self.ends
        lows, highs = self.values.lows, self.values.highs
        if lows.size < 2 or most <= least:
            return 0.0, 0.0
        moves = [abs(lows[::2].min() - lows[1::2].min()), abs(highs[::2].max() - highs[1::2].max())]
        return float(min(moves)) / (most - least), float(max(moves)) / (most - least)

    @property
    def shift(self) -> float:
        """How far both ends lie to one side of the values' ends, over their width; 0 if they do not."""
        (low, high), (least, most) = self.ends
        below, above = low - least, high - most
        if below * above <= 0 or most <= least:
            return 0.0
        return float(np.sign(below)) * min(abs(below), abs(above)) / (most - least)

    @property
    def misfit(self) -> float:
        """How far the ends of range and values are apart, over the wider of both: 0 to 1."""
        (low, high), (least, most) = self.ends
        return max(abs(low - least), abs(high - most)) / max(high - low, most - least)

    @cached_property
    def fits(self) -> tuple[GridFit, GridFit]:
        """The grid that holds all values, and the one of least error."""
        return self.values.full_fit(self.quantizer), self.values.best_fit(self.quantizer)

    @property
    def excess(self) -> float:
        """Error of the grid over the best one's of its type, over the mean square of the values."""
        best = min(fit.noise for fit in self.fits)
        return (self.noise - best) / self.values.power if self.values.power else 0.0

    @property
    def excess_db(self) -> float:
        """Error of the grid over the best one's of its type, in dB."""
        best = min(fit.noise for fit in self.fits)
        return ratio_db(self.noise, best) if self.noise > 0 and best > 0 else 0.0

    @property
    def steps_used(self) -> float:
        """Share of the numbers of the grid that lie within the values."""
        return min(1.0, 1.0 / self.ratio) if self.ratio else 1.0


def typical(figures: Sequence[float]) -> float:
    """Return the median; 1 without figures."""
    return float(np.median(figures)) if len(figures) else 1.0

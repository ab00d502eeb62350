"""`RangeReading`: the range of a scale against the values of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise, grid_error
from onnxfq.calibration.statistics.bins import NEGATIVE
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.values import GridFit, TensorValues
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec

WIDE = 1.5
"""Width of a range over its values' from which it is too wide: samples of one kind differ by less."""

_SHRINKS = np.linspace(1.0, 0.2, 17)
# Parts of the full range that are tried for the least error. The calibrator mse, which moves each end by
# itself, has less error at the tensor and 0.3 dB more at the outputs: unseen values lie beyond its range.


@dataclass(frozen=True)
class RangeReading:
    """The range of one scale, and its values.

    Attributes:
        group: quantizers with this scale.
        values: of their tensors.
    """

    group: Sequence[ActivationQuantizer]
    values: TensorValues

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
        least, most = min(self.values.seen.rmin, 0.0), max(self.values.seen.rmax, 0.0)
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
    def is_near(self) -> bool:
        """Whether the range is about as wide as the values."""
        return 1 / WIDE < self.ratio < WIDE

    @property
    def overrun(self) -> float:
        """How far values leave the range at one end, over their width."""
        (low, high), (least, most) = self.ends
        return max(low - least, most - high, 0.0) / (most - least) if most > least else 0.0

    @property
    def wander(self) -> tuple[float, float]:
        """How far each end differs between two halves of the samples, over the width; the smaller first."""
        (_, _), (least, most) = self.ends
        feeds = self.values.seen.feed_ranges.astype(np.float64) * (-1, 1)
        if len(feeds) < 2 or most <= least:
            return 0.0, 0.0
        moves = np.abs(feeds[::2].max(0) - feeds[1::2].max(0)) / (most - least)
        return float(moves.min()), float(moves.max())

    @cached_property
    def shift(self) -> float:
        """How far both ends lie to one side of the values' ends, over their width; 0 if they do not."""
        (low, high), (least, most) = self.ends
        below, above = low - least, high - most
        if below * above <= 0 or most <= least:
            return 0.0
        return float(np.sign(below)) * min(abs(below), abs(above)) / (most - least)

    @cached_property
    def misfit(self) -> float:
        """How far the ends of range and values are apart, over the wider of both: 0 to 1."""
        (low, high), (least, most) = self.ends
        return max(abs(low - least), abs(high - most)) / max(high - low, most - least)

    @cached_property
    def fits(self) -> tuple[GridFit, GridFit]:
        """The grid that holds all values, and the one of least error."""
        return self._fit(_SHRINKS[:1]), self._fit(_SHRINKS[:1] if self.quantizer.qtype.is_float else _SHRINKS)

    def _fit(self, parts: NDArray[np.float64]) -> GridFit:
        """Return the grid of least error for these parts of the range, of the type and symmetry of this one.

        A grid without negative numbers is given some if the values need them.
        """
        quantizer, values, numbers = self.quantizer, self.values, self.quantizer.qtype
        grid, seen = quantizer.grid, values.seen
        if not values.power:
            return GridFit(grid.scale, grid.zero)
        if quantizer.is_symmetric and not numbers.is_float:
            most = grid.codes[1] - grid.zero
            numbers = qtype_of_integers(int(-most), int(most))
        elif quantizer.starts_at_zero and not values.is_signed:
            kept = seen.bins < NEGATIVE
            seen = replace(seen, rmin=0.0, bins=seen.bins[kept], counts=seen.counts[kept])
        spec = QuantSpec(qtype=numbers, symmetric=quantizer.is_symmetric)
        low, high = min(seen.rmin, 0.0) * parts, max(seen.rmax, 0.0) * parts
        best = int(np.argmin(grid_error(Density.from_statistics(seen), low, high, spec)))
        scale, zero = choose_qparams(low[best], high[best], spec.qtype, spec.symmetric)
        return GridFit(float(scale), grid.zero if quantizer.is_symmetric else float(zero))

    @property
    def saturated(self) -> tuple[float, float]:
        """The shares of values that saturate at the lower and at the upper end."""
        (low, high), half = self.quantizer.grid.limits, self.quantizer.grid.scale / 2
        return self.values.share_between(-np.inf, low - half), self.values.share_between(high + half, np.inf)

    @cached_property
    def noises(self) -> tuple[float, float]:
        """Mean square error of the grid, and the least that one of its type has."""
        grid, values = self.quantizer.grid, self.values
        own, *best = (
            estimate_noise(values.density, *one, self.quantizer.qtype) / max(values.seen.finite, 1)
            for one in ((grid.scale, grid.zero), *self.fits)
        )
        return own, min(best)

    @property
    def excess(self) -> float:
        """Error of the grid over the best one's of its type, over the mean square of the values."""
        noise, best = self.noises
        return (noise - best) / self.values.power if self.values.power else 0.0

    @property
    def excess_db(self) -> float:
        """Error of the grid over the best one's of its type, in dB."""
        return ratio_db(*self.noises) if min(self.noises) > 0 else 0.0


def mean_misfit(readings: Sequence[RangeReading]) -> float:
    """Return how far the ends of ranges and values are apart on average; 0 without ranges."""
    return float(np.mean([reading.misfit for reading in readings])) if readings else 0.0


def typical(figures: Sequence[float]) -> float:
    """Return the median; 1 without figures."""
    return float(np.median(figures)) if len(figures) else 1.0

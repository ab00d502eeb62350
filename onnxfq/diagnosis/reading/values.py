"""`TensorValues`: what the data shows of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.entropy import linear_histogram
from onnxfq.calibration.calibrators.grid_error import Density
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.calibration.statistics.bins import NEGATIVE

SAMPLED = 4096
"""Values that are kept of a tensor from each feed, evenly spaced."""

SIGNED = 0.01
"""Share of values below 0, and of their energy, from which a tensor is signed."""


class GridFit(NamedTuple):
    """A scale and a zero point."""

    scale: float
    zero: float


@dataclass(frozen=True)
class TensorValues:
    """Values of one tensor in one feed, or in several.

    Attributes:
        seen: statistics of evenly spaced values, with the ends of all values, of all feeds and of each.
        channels: the largest magnitude of each channel; empty without a channel axis.
    """

    seen: TensorStatistics
    channels: NDArray[np.float64]

    @staticmethod
    def of(array: NDArray[Any], channels_last: bool) -> TensorValues:
        """Return the values of a tensor in one feed; SAMPLED or up to twice as many finite ones are kept."""
        flat, channels = array.ravel(), np.zeros(0)
        if flat.size and not np.isfinite([flat.min(), flat.max()]).all():
            flat = flat[np.isfinite(flat)]
        if array.ndim > 1 and array.size:
            others = tuple(at for at in range(array.ndim) if at != (array.ndim - 1 if channels_last else 1))
            channels = np.maximum(array.max(others), -array.min(others)).astype(np.float64)
        seen = TensorStatistics.from_array(flat[:: max(1, flat.size // SAMPLED)])
        if flat.size:
            low, high = ends = float(flat.min()), float(flat.max())
            seen = replace(seen, rmin=low, rmax=high, feed_ranges=np.asarray([ends], np.float32))
        return TensorValues(seen, channels)

    @staticmethod
    def over(parts: Sequence[TensorValues]) -> TensorValues:
        """Return the values of several feeds, or of several tensors as a grid that they share sees them."""
        seen = reduce(TensorStatistics.merge, (one.seen for one in parts))
        sizes = [one.channels for one in parts]
        is_alike = len({size.shape for size in sizes}) == 1  # else their channels are others
        return TensorValues(seen, np.max(sizes, 0) if is_alike else np.zeros(0))

    @cached_property
    def density(self) -> Density:
        """The histogram of the values."""
        return Density.from_statistics(self.seen)

    @property
    def power(self) -> float:
        """Mean square of the values."""
        return self.density.power / max(self.seen.finite, 1)

    def share_between(self, low: float, high: float) -> float:
        """Return the share of values from `low` to `high`."""
        edges = np.asarray([min(self.seen.rmin, low), low, high, max(self.seen.rmax, high)])
        return float(linear_histogram(self.density, edges)[1]) / max(self.seen.finite, 1)

    @cached_property
    def below_zero(self) -> tuple[float, float]:
        """Shares of the values below 0, and of their energy."""
        negative = self.density.select(self.seen.bins >= NEGATIVE)
        power = self.density.power
        return (negative.counts.sum() / self.seen.finite, negative.power / power) if power else (0.0, 0.0)

    @property
    def is_signed(self) -> bool:
        """Whether values below 0 are more than a few."""
        return min(self.below_zero) >= SIGNED

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


class SampledFeed(NamedTuple):
    """Values of one tensor in one feed.

    Attributes:
        values: finite ones, evenly spaced.
        ends: the smallest and the largest of all.
        channels: the largest magnitude of each channel; empty without a channel axis.
    """

    values: NDArray[np.float32]
    ends: tuple[float, float]
    channels: NDArray[np.float64]

    @staticmethod
    def of(array: NDArray[Any], channels_last: bool) -> SampledFeed:
        """Return the values of a tensor."""
        flat, channels = array.ravel(), np.zeros(0)
        if flat.size and not (np.isfinite(flat.min()) and np.isfinite(flat.max())):
            flat = flat[np.isfinite(flat)]
        if array.ndim > 1 and array.size:
            others = tuple(at for at in range(array.ndim) if at != (array.ndim - 1 if channels_last else 1))
            channels = np.maximum(array.max(others), -array.min(others)).astype(np.float64)
        ends = float(flat.min(initial=np.inf)), float(flat.max(initial=-np.inf))
        # A copy: a view would keep the whole tensor.
        return SampledFeed(np.array(flat[:: max(1, flat.size // SAMPLED)], np.float32), ends, channels)


@dataclass(frozen=True)
class TensorValues:
    """Values of one tensor over all feeds.

    Attributes:
        seen: statistics of evenly spaced values, with the ends of all values, of all feeds and of each.
        channels: the largest magnitude of each channel; empty without a channel axis.
    """

    seen: TensorStatistics
    channels: NDArray[np.float64]

    @staticmethod
    def of(feeds: Sequence[SampledFeed]) -> TensorValues:
        """Return the values of several feeds."""
        seen = TensorStatistics.from_array(np.concatenate([feed.values for feed in feeds]))
        ends = np.asarray([feed.ends for feed in feeds if feed.values.size], np.float32).reshape(-1, 2)
        low, high = ends[:, 0].min(initial=np.inf), ends[:, 1].max(initial=-np.inf)
        seen = replace(seen, rmin=float(low), rmax=float(high), feed_ranges=ends)
        return TensorValues(seen, _largest([feed.channels for feed in feeds]))

    @staticmethod
    def over(tensors: Sequence[TensorValues]) -> TensorValues:
        """Return the values of several tensors as a grid that they share sees them."""
        seen = reduce(TensorStatistics.merge, (one.seen for one in tensors))
        return TensorValues(seen, _largest([one.channels for one in tensors]))

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


def _largest(sizes: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the largest size of each channel; nothing for another number of channels."""
    return np.max(sizes, 0) if len({one.shape for one in sizes}) == 1 else np.zeros(0)

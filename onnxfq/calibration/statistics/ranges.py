"""Ranges and counts summed over feeds: the part that accumulators of whole tensors and of groups share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.kind import Observed
from onnxfq.errors import StatisticsError


def refuse_nonfinite(tensor: str, nans: int, infinities: int, feed: int) -> None:
    """Raise StatisticsError when feed number `feed` gave `tensor` values that are no numbers."""
    if nans or infinities:
        raise StatisticsError(
            f"tensor {tensor!r} has {nans} NaN and {infinities} infinite values at feed {feed}; "
            "remove that sample, skip such values, or leave the tensor in float with an override"
        )


def widen_ranges(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the ranges that hold both, float32 [..., 2]."""
    return np.stack([np.minimum(one[..., 0], other[..., 0]), np.maximum(one[..., 1], other[..., 1])], axis=-1)


class RangeSum:
    """Ranges, counts and, where they are kept, the ranges of every feed."""

    def __init__(self, observed: Observed) -> None:
        """Start with nothing."""
        groups = () if observed.shape is None else (observed.groups,)
        self.observed = observed
        self.ranges = np.broadcast_to(np.asarray([np.inf, -np.inf], np.float32), (*groups, 2)).copy()
        self.totals = np.zeros((*groups, 4), np.int64)
        self._kept: list[NDArray[np.float32]] = []

    def add_ranges(self, limits: NDArray[np.float32], counts: NDArray[np.int64], feed: int) -> None:
        """Add what feed number `feed` gave. Raises StatisticsError for values that are refused."""
        if self.observed.stop and counts[..., 1:3].any():
            nans, infinities = (int(counts[..., kind].sum()) for kind in (1, 2))
            refuse_nonfinite(self.observed.tensor, nans, infinities, feed)
        np.minimum(self.ranges[..., 0], limits[..., 0], out=self.ranges[..., 0])
        np.maximum(self.ranges[..., 1], limits[..., 1], out=self.ranges[..., 1])
        self.totals += counts
        if self.observed.feed_ranges:
            self._kept.append(limits)

    def feed_ranges(self) -> NDArray[np.float32]:
        """Return [feeds, ..., 2]; no feeds where none were kept."""
        return np.asarray(self._kept or np.zeros((0, *self.ranges.shape)), np.float32)

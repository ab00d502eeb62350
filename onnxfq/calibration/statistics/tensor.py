"""`TensorStatistics`: what observers gather from one tensor, exact and mergeable."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.bins import BIN_COUNT, BIN_SHIFT, bin_edges, merge_counts

STATE_HEADER = 8
"""Numbers of a state of operator MergeStatistics before its histogram, see `docs/custom-ops.md`."""
STATE_NANS, STATE_INFINITIES = 3, 4


def empty_state(histogram: bool = True) -> NDArray[np.int64]:
    """Return the state of operator MergeStatistics that has seen nothing: int64 [8], or [8 + BIN_COUNT]."""
    state = np.zeros(STATE_HEADER + (BIN_COUNT if histogram else 0), np.int64)
    state[:2] = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    return state


def state_ranges(states: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the ranges that states [..., at least STATE_HEADER] tell of, float32 [..., 2].

    (+inf, -inf) where there was no finite value.
    """
    keys = states[..., :2].astype(np.int32)
    # Keys of negative floats have their magnitude bits flipped, so that they sort as integers.
    limits = (keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    some = states[..., 2] > states[..., STATE_NANS] + states[..., STATE_INFINITIES]
    return np.where(some[..., None], limits, np.asarray([np.inf, -np.inf], np.float32))


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of one tensor; `TensorStatistics()` is the identity of `merge`.

    rmin, rmax: over the finite values, (+inf, -inf) when there is none. elements, nans, infinities,
    zeros: counts. bins int32 [K] ascending, counts int64 [K]: the finite values' histogram. feed_ranges
    float32 [F, 2]: (rmin, rmax) of each feed in order, for methods that hang on order; [0, 2] if not kept.
    """

    rmin: float = float("inf")
    rmax: float = float("-inf")
    elements: int = 0
    nans: int = 0
    infinities: int = 0
    zeros: int = 0
    bins: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32), kw_only=True)
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), kw_only=True)
    feed_ranges: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((0, 2), np.float32), kw_only=True
    )

    @staticmethod
    def from_array(x: NDArray[np.float32]) -> TensorStatistics:
        """Gather from an array of any shape in NumPy; the Observe kernel gives the same."""
        x = np.ascontiguousarray(x, np.float32).ravel()
        finite = x[np.isfinite(x)] + np.float32(0.0)  # + 0 turns -0 into +0
        nans = int(np.isnan(x).sum())
        bins, counts = np.unique(finite.view(np.uint32) >> BIN_SHIFT, return_counts=True)
        return TensorStatistics(
            rmin=float(finite.min(initial=np.inf)),
            rmax=float(finite.max(initial=-np.inf)),
            elements=x.size,
            nans=nans,
            infinities=x.size - finite.size - nans,
            zeros=int((finite == 0).sum()),
            bins=bins.astype(np.int32),
            counts=counts.astype(np.int64),
        )

    @staticmethod
    def from_state(state: NDArray[np.int64]) -> TensorStatistics:
        """Read what operator MergeStatistics has gathered, see `docs/custom-ops.md`."""
        rmin, rmax = (float(end) for end in state_ranges(state))
        bins = np.flatnonzero(state[STATE_HEADER:]).astype(np.int32)
        return TensorStatistics(
            rmin,
            rmax,
            *(int(count) for count in state[2:6]),
            bins=bins,
            counts=state[STATE_HEADER + bins],
        )

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """Return the statistics of both data sets together: exact, associative, commutative.

        But for feed_ranges, which hang on order: they are joined in the order of merging.
        """
        bins, counts = merge_counts(self.bins, self.counts, other.bins, other.counts)
        return TensorStatistics(
            rmin=min(self.rmin, other.rmin),
            rmax=max(self.rmax, other.rmax),
            elements=self.elements + other.elements,
            nans=self.nans + other.nans,
            infinities=self.infinities + other.infinities,
            zeros=self.zeros + other.zeros,
            bins=bins,
            counts=counts,
            feed_ranges=np.concatenate([self.feed_ranges, other.feed_ranges]),
        )

    @property
    def finite(self) -> int:
        """How many values are neither NaN nor infinite."""
        return self.elements - self.nans - self.infinities

    @property
    def amax(self) -> float:
        """Largest magnitude; 0 for no finite value."""
        return max(-self.rmin, self.rmax, 0.0)

    def edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the bins' (low, high) edges, cut to [rmin, rmax]; equal where a bin is one value."""
        low, high = bin_edges(self.bins)
        return np.clip(low, self.rmin, self.rmax), np.clip(high, self.rmin, self.rmax)

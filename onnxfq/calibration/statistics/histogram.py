"""Tensor histogram, a kind of statistics: exact and mergeable, with range and counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.bins import (
    BIN_COUNT,
    BIN_SHIFT,
    OCTAVE,
    USUAL_OCTAVES,
    bin_edges,
    merge_counts,
)
from onnxfq.calibration.statistics.kind import (
    COUNTS,
    TEXTS,
    Columns,
    Form,
    Kind,
    Observed,
    Results,
    Value,
    take_columns,
)
from onnxfq.calibration.statistics.ranges import refuse_nonfinite, widen_ranges
from onnxfq.calibration.statistics.state import read_state
from onnxfq.errors import StatisticsError

_GROUPS_AT_ONCE = 256

_BIN_BITS, _OCTAVE_BITS = BIN_COUNT.bit_length() - 1, OCTAVE.bit_length() - 1

_FORMS: dict[str, Form] = {
    "tensors": TEXTS,
    "range": ("f", (None, 2)),
    "totals": ("iu", (None, 4)),
    **dict.fromkeys(("sizes", "bins", "counts"), COUNTS),
    "feed_ranges": ("f", (None, None, 2)),
}


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of one tensor; `TensorStatistics()` is the identity of `merge`.

    Attributes:
        rmin: lowest finite value, +inf without finite values.
        rmax: highest finite value, -inf without finite values.
        elements: number of values.
        nans: number of NaN.
        infinities: number of infinities.
        zeros: number of zeros.
        bins: int32 [K] ascending, occupied bins of the finite values' histogram.
        counts: int64 [K], count of each bin.
        feed_ranges: float32 [F, 2], (rmin, rmax) of each feed in order, for methods that depend on order;
            [0, 2] if not recorded.
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
        """Compute the statistics of an array of any shape in NumPy; the Observe kernel gives the same."""
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
    def from_results(
        limits: Iterable[float],
        totals: Iterable[int],
        bins: NDArray[np.int32],
        counts: NDArray[np.int64],
        feed_ranges: NDArray[np.float32] | None = None,
    ) -> TensorStatistics:
        """Create statistics from range, counts, bins and bin counts, the outputs of operator Observe."""
        kept = np.zeros((0, 2), np.float32) if feed_ranges is None else feed_ranges
        rmin, rmax = map(float, limits)
        return TensorStatistics(rmin, rmax, *map(int, totals), bins=bins, counts=counts, feed_ranges=kept)

    @staticmethod
    def from_state(state: NDArray[np.int64]) -> TensorStatistics:
        """Create statistics from a state of operator MergeStatistics, see `docs/custom-ops.md`."""
        return TensorStatistics.from_results(*read_state(state))

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """Return the statistics of both data sets together: exact, associative, commutative.

        The exception is feed_ranges, which depend on order: they are joined in the order of merging.
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

    def begin_at(self, floor: float) -> TensorStatistics:
        """Return these statistics with every value below `floor`, a negative float32, raised to it.

        Infinities are such values. Without any, the floor counts as one value.
        """
        _, high = self.edges()
        kept = high > floor
        at = TensorStatistics.from_array(np.asarray([floor], np.float32)).bins
        count = int(self.counts[~kept].sum()) + self.infinities
        moved = np.asarray([max(count, 1)], np.int64)
        bins, counts = merge_counts(self.bins[kept], self.counts[kept], at, moved)
        feed_ranges = np.maximum(self.feed_ranges, np.float32(floor))
        return TensorStatistics(
            floor,
            max(floor, self.rmax),
            self.elements + (not count),
            self.nans,
            zeros=self.zeros,
            bins=bins,
            counts=counts,
            feed_ranges=feed_ranges,
        )

    @property
    def finite(self) -> int:
        """Number of finite values."""
        return self.elements - self.nans - self.infinities

    @cached_property
    def ranges(self) -> dict[Hashable, tuple[float, float]]:
        """Ranges that calibrators, which are pure, have chosen so far, by calibrator and format."""
        return {}

    @property
    def amax(self) -> float:
        """Largest magnitude; 0 without finite values."""
        return max(-self.rmin, self.rmax, 0.0)

    def edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the bins' (low, high) edges, clipped to [rmin, rmax]; equal if a bin is one value."""
        low, high = bin_edges(self.bins)
        return np.clip(low, self.rmin, self.rmax), np.clip(high, self.rmin, self.rmax)

    def fingerprint(self) -> bytes:
        """Return bytes that identify these statistics except feed_ranges."""
        totals = (self.elements, self.nans, self.infinities, self.zeros)
        head = f" {self.rmin!r} {self.rmax!r} {totals}".encode()
        return head + self.bins.astype("<i4").tobytes() + self.counts.astype("<i8").tobytes()


class OctaveSum(Generic[Value]):
    """Sum of the ranges, counts and histograms of the groups of a tensor, or of all of it as one group.

    It holds only the octaves with values of any group, with 4 bytes per bin until a count may need 8: 10 to
    16 KB per group.
    """

    def __init__(
        self, observed: Observed, read: Callable[[Observed, Results, NDArray[np.float32]], Value]
    ) -> None:
        """Start empty; `read` makes the value, as of a kind."""
        self._observed, self._read, self._groups = observed, read, observed.groups
        self._ranges = np.tile(np.asarray([np.inf, -np.inf], np.float32), (self._groups, 1))
        self._totals = np.zeros((self._groups, 4), np.int64)
        self._kept: list[NDArray[np.float32]] = []
        self._places = np.full(BIN_COUNT // OCTAVE, -1, np.int16)  # of each octave in `_counts`
        self._counts: NDArray[Any] = np.zeros((0, self._groups, OCTAVE), np.uint32)

    def add(self, results: Results, feed: int) -> None:
        """Add the results of feed number `feed`. Raises StatisticsError for refused NaN and infinities."""
        limits, totals, keys, counts = results
        if self._observed.stop:
            nans, infinities = (int(totals[..., kind].sum()) for kind in (1, 2))
            refuse_nonfinite(self._observed.tensor, nans, infinities, feed)
        self._ranges = widen_ranges(self._ranges, limits)
        self._totals += totals
        if self._observed.feed_ranges:
            self._kept.append(limits)
        if self._counts.dtype == np.uint32 and self._totals[:, 0].max(initial=0) >= 1 << 32:
            self._counts = self._counts.astype(np.int64)
        # Both sizes are powers of two: shifts and masks take half of the time of divisions, in every run.
        groups, octaves = keys >> _BIN_BITS, (keys & (BIN_COUNT - 1)) >> _OCTAVE_BITS
        places = self._places[octaves]
        if places.min(initial=0) < 0:
            fresh = np.unique(octaves[places < 0])
            self._places[fresh] = len(self._counts) + np.arange(fresh.size)
            more = np.zeros((fresh.size, self._groups, OCTAVE), self._counts.dtype)
            self._counts = np.concatenate([self._counts, more])
            places = self._places[octaves]
        # Keys ascend, so none repeats.
        at = (places.astype(np.intp) * self._groups + groups) * OCTAVE + (keys & (OCTAVE - 1))
        self._counts.reshape(-1)[at] += counts.astype(self._counts.dtype)

    @property
    def bytes(self) -> int:
        """Current size of the histograms."""
        return self._places.nbytes + self._counts.nbytes

    def result(self) -> Value:
        """Return the statistics of all added feeds."""
        kept = np.asarray(self._kept, np.float32).reshape(len(self._kept), self._groups, 2)
        return self._read(self._observed, [self._ranges, self._totals, *self._counted()], kept)

    def _counted(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the keys with values, group * BIN_COUNT + bin, ascending, and the count of each."""
        octaves = np.flatnonzero(self._places >= 0)
        places = self._places[octaves]
        bins = (octaves[:, None] * OCTAVE + np.arange(OCTAVE)).ravel()
        keys, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for start in range(0, self._groups, _GROUPS_AT_ONCE):
            part = self._counts[places, start : start + _GROUPS_AT_ONCE].swapaxes(0, 1)
            part = part.reshape(part.shape[0], -1)
            group, column = np.nonzero(part)
            keys.append(((start + group) * BIN_COUNT + bins[column]).astype(np.int32))
            counts.append(part[group, column].astype(np.int64))
        return np.concatenate(keys), np.concatenate(counts)


def _read(observed: Observed, results: Results, feed_ranges: NDArray[np.float32]) -> TensorStatistics:
    (limits,), (totals,), bins, counts = results
    return TensorStatistics.from_results(limits, totals, bins, counts, feed_ranges[:, 0])


def _pack(tensors: Mapping[str, TensorStatistics]) -> dict[str, NDArray[Any]]:
    names = sorted(tensors)
    ones = [tensors[name] for name in names]
    if len({one.feed_ranges.shape for one in ones}) > 1:
        raise StatisticsError(f"only some of the tensors {', '.join(names[:3])}, ... have feed_ranges")
    totals = [(one.elements, one.nans, one.infinities, one.zeros) for one in ones]
    return {
        "tensors": np.asarray(names, np.str_),
        "range": np.asarray([(one.rmin, one.rmax) for one in ones], np.float64).reshape(-1, 2),
        "totals": np.asarray(totals, np.int64).reshape(-1, 4),
        "sizes": np.asarray([one.bins.size for one in ones], np.int64),
        "bins": np.concatenate([np.zeros(0, np.int32), *(one.bins for one in ones)]),
        "counts": np.concatenate([np.zeros(0, np.int64), *(one.counts for one in ones)]),
        "feed_ranges": np.asarray([one.feed_ranges for one in ones] or np.zeros((0, 0, 2)), np.float32),
    }


def _unpack(columns: Columns) -> dict[str, TensorStatistics]:
    names, ranges, totals, sizes, bins, counts, feed_ranges = take_columns(columns, _FORMS)
    if bins.max(initial=0) >= BIN_COUNT:
        raise ValueError("'bins' has a number beyond the last bin")
    if not bins.size == counts.size == sum(map(int, sizes)):
        raise ValueError("'bins' and 'counts' are not as long as 'sizes' say")
    bins = bins.astype(np.int32)
    starts = np.cumsum(sizes) - sizes
    tensors = {}
    for name, (rmin, rmax), (elements, nans, infinities, zeros), start, size, kept in zip(
        names, ranges, totals, starts, sizes, feed_ranges, strict=True
    ):
        held = slice(start, start + size)
        one = TensorStatistics.from_results(
            (rmin, rmax), (elements, nans, infinities, zeros), bins[held], counts[held], kept
        )
        counted = int(one.counts.sum()) + one.nans + one.infinities
        if counted != one.elements:
            raise ValueError(f"the counts of tensor {str(name)!r} do not add up")
        low, high = bin_edges(one.bins)
        if low.size and not (low.min() <= rmin <= high.min() and low.max() <= rmax <= high.max()):
            raise ValueError(f"the range of tensor {str(name)!r} does not end in its first and last bins")
        tensors[str(name)] = one
    return tensors


HISTOGRAM: Kind[TensorStatistics] = Kind(
    name="histogram",
    noun="",
    outputs=("range", "counts", "bins", "bin_counts"),
    suits=lambda observed: observed.shape is None,
    empty=lambda observed: OctaveSum(observed, _read),
    read=_read,
    merge=TensorStatistics.merge,
    fingerprint=TensorStatistics.fingerprint,
    pack=lambda items: iter(_pack(dict(items)).items()),
    unpack=_unpack,
    memory=lambda observed: 2 * (BIN_COUNT // OCTAVE) + 4 * OCTAVE * USUAL_OCTAVES * observed.groups,
    forms=_FORMS,
)

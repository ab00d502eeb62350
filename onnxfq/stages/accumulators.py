"""Accumulators: what observers find in feed after feed, added up; a merge touches only what came."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import BIN_COUNT, GroupStatistics, TensorStatistics, empty_state, wider
from onnxfq.errors import StatisticsError
from onnxfq.numerics.granularity import Granularity

Results = list[NDArray[Any]]
"""Range, counts, bins and bin counts, as operator Observe gives them."""

_OCTAVE = 64
"""Bins of one exponent and sign, those that values of one size share."""
USUAL_OCTAVES = 64
"""More of the 512 octaves than the values of most channels lie in: 32 powers of two of each sign."""
_GROUPS_AT_ONCE = 256


def refuse_nonfinite(tensor: str, nans: int, infinities: int, feed: int) -> None:
    """Raise StatisticsError when feed number `feed` gave `tensor` values that are no numbers."""
    if nans or infinities:
        raise StatisticsError(
            f"tensor {tensor!r} has {nans} NaN and {infinities} infinite values at feed {feed}; "
            "remove that sample, skip such values, or leave the tensor in float with an override"
        )


class _Ranges:
    """What both kinds have in common: range, counts and, where they are kept, the ranges of every feed."""

    def __init__(self, tensor: str, groups: tuple[int, ...], stop: bool, feed_ranges: bool) -> None:
        self._tensor, self._stop = tensor, stop
        self._ranges = np.broadcast_to(np.asarray([np.inf, -np.inf], np.float32), (*groups, 2)).copy()
        self._totals = np.zeros((*groups, 4), np.int64)
        self._kept: list[NDArray[np.float32]] | None = [] if feed_ranges else None

    def _add_ranges(self, limits: NDArray[np.float32], counts: NDArray[np.int64], feed: int) -> None:
        if self._stop and counts[..., 1:3].any():
            nans, infinities = (int(counts[..., kind].sum()) for kind in (1, 2))
            refuse_nonfinite(self._tensor, nans, infinities, feed)
        np.minimum(self._ranges[..., 0], limits[..., 0], out=self._ranges[..., 0])
        np.maximum(self._ranges[..., 1], limits[..., 1], out=self._ranges[..., 1])
        self._totals += counts
        if self._kept is not None:
            self._kept.append(limits)

    def _feed_ranges(self) -> NDArray[np.float32]:
        """Return [feeds, ..., 2]; no feeds where none were kept."""
        return np.asarray(self._kept or np.zeros((0, *self._ranges.shape)), np.float32)


class TensorAccumulator(_Ranges):
    """Statistics of a whole tensor; the histogram is held with a place for every bin."""

    def __init__(self, tensor: str, stop: bool, feed_ranges: bool) -> None:
        """Start with nothing. stop: whether NaN and infinities are refused. feed_ranges: those are kept."""
        super().__init__(tensor, (), stop, feed_ranges)
        # Zero pages take no memory before they are written.
        self._histogram = np.zeros(BIN_COUNT, np.int64)

    def add(self, results: Results, feed: int) -> None:
        """Add what an observer found in feed number `feed`. Raises StatisticsError where it may not be."""
        limits, counts, bins, bin_counts = results
        self._add_ranges(limits, counts, feed)
        self._histogram[bins] += bin_counts

    def result(self) -> TensorStatistics:
        """Return what was added."""
        bins = np.flatnonzero(self._histogram).astype(np.int32)
        return TensorStatistics(
            float(self._ranges[0]),
            float(self._ranges[1]),
            *(int(total) for total in self._totals),
            bins=bins,
            counts=self._histogram[bins],
            feed_ranges=self._feed_ranges(),
        )


class ChannelRanges:
    """The range of each channel of one tensor, float32 [C, 2], over all feeds."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._ranges: NDArray[np.float32] | None = None

    def add(self, limits: NDArray[np.float32]) -> None:
        """Add what was found of the channels, in one feed or several."""
        limits = limits + np.float32(0)  # a zero has no sign, whichever came first
        self._ranges = limits if self._ranges is None else wider(self._ranges, limits)

    def result(self) -> NDArray[np.float32]:
        """Return what was added; no channel where nothing was."""
        return np.zeros((0, 2), np.float32) if self._ranges is None else self._ranges


class GroupAccumulator(_Ranges):
    """Statistics of the channels or blocks of one tensor.

    Of histograms only the octaves are held that values of any group lie in, 4 bytes a bin until a count
    may need 8: 10 to 16 KB a group.
    """

    def __init__(
        self, tensor: str, granularity: Granularity, shape: tuple[int, ...], stop: bool, feed_ranges: bool
    ) -> None:
        """Start with nothing, as `TensorAccumulator`. shape: of a scale."""
        groups = int(np.prod(shape, dtype=np.int64))
        super().__init__(tensor, (groups,), stop, feed_ranges)
        self._granularity, self._shape, self._groups = granularity, shape, groups
        self._places = np.full(BIN_COUNT // _OCTAVE, -1, np.int64)  # of every octave in `_counts`
        self._counts: NDArray[Any] = np.zeros((0, groups, _OCTAVE), np.uint32)

    def add(self, results: Results, feed: int) -> None:
        """Add what an observer found in feed number `feed`. Raises StatisticsError where it may not be."""
        limits, totals, keys, counts = results
        self._add_ranges(limits, totals, feed)
        if self._counts.dtype == np.uint32 and self._totals[:, 0].max(initial=0) >= 1 << 32:
            self._counts = self._counts.astype(np.int64)
        groups, bins = np.divmod(keys, np.int32(BIN_COUNT))
        octaves = bins // _OCTAVE
        places = self._places[octaves]
        if places.min(initial=0) < 0:
            fresh = np.unique(octaves[places < 0])
            self._places[fresh] = len(self._counts) + np.arange(fresh.size)
            more = np.zeros((fresh.size, self._groups, _OCTAVE), self._counts.dtype)
            self._counts = np.concatenate([self._counts, more])
            places = self._places[octaves]
        # Keys ascend: none comes twice.
        at = (places * self._groups + groups) * _OCTAVE + bins % _OCTAVE
        self._counts.reshape(-1)[at] += counts.astype(self._counts.dtype)

    @property
    def bytes(self) -> int:
        """What the histograms take now."""
        return self._counts.nbytes

    def result(self) -> GroupStatistics:
        """Return what was added."""
        octaves = np.flatnonzero(self._places >= 0)
        places = self._places[octaves]
        bins = (octaves[:, None] * _OCTAVE + np.arange(_OCTAVE)).ravel()
        keys, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for start in range(0, self._groups, _GROUPS_AT_ONCE):
            part = self._counts[places, start : start + _GROUPS_AT_ONCE].swapaxes(0, 1)
            part = part.reshape(part.shape[0], -1)
            group, column = np.nonzero(part)
            keys.append(((start + group) * BIN_COUNT + bins[column]).astype(np.int32))
            counts.append(part[group, column].astype(np.int64))
        return GroupStatistics(
            self._granularity,
            self._shape,
            self._ranges,
            self._totals,
            np.concatenate(keys),
            np.concatenate(counts),
            self._feed_ranges(),
        )


def usual_bytes(shape: tuple[int, ...] | None) -> int:
    """Return what the histograms of a tensor usually take. shape: of its groups; None: it as a whole."""
    if shape is None:
        return 8 * BIN_COUNT
    return 4 * _OCTAVE * USUAL_OCTAVES * int(np.prod(shape, dtype=np.int64))


def state_bytes(shape: tuple[int, ...] | None) -> int:
    """Return what the states of operator MergeStatistics take. shape: as above."""
    return empty_state().nbytes * (1 if shape is None else int(np.prod(shape, dtype=np.int64)))

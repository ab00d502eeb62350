"""Grouped histograms, a kind of statistics: a histogram per channel or block of a tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.bins import BIN_COUNT, merge_counts
from onnxfq.calibration.statistics.histogram import HISTOGRAM, OctaveSum, TensorStatistics
from onnxfq.calibration.statistics.kind import (
    COUNTS,
    TEXTS,
    Columns,
    Form,
    Kind,
    Observed,
    Results,
    take_columns,
)
from onnxfq.calibration.statistics.ranges import widen_ranges
from onnxfq.errors import StatisticsError
from onnxfq.numerics.granularity import Granularity

MOST_GROUPS = (1 << 31) // BIN_COUNT
"""Keys are 32-bit integers; `statistics.h` has the same."""

_FORMS: dict[str, Form] = {
    **dict.fromkeys(("group_tensors", "group_blocks"), TEXTS),
    "group_range": ("f", (None, 2)),
    "group_totals": ("iu", (None, 4)),
    **dict.fromkeys(("group_sizes", "group_keys", "group_counts"), COUNTS),
    "group_feed_ranges": ("f", (None, None, 2)),
}


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of G groups of elements of one tensor, whose elements share a scale under `granularity`.

    Attributes:
        granularity: which elements form a group.
        shape: shape of a scale, G its product; groups are numbered in C order.
        ranges: float32 [G, 2] over the finite values, (+inf, -inf) for a group without finite values.
        totals: int64 [G, 4]: elements, NaN, infinities, zeros.
        keys: int32 [K] ascending, keys of the finite values' histograms: group * BIN_COUNT + bin.
        counts: int64 [K], count of each key.
        feed_ranges: float32 [F, G, 2], ranges of each feed in order, for methods that depend on order; F is 0
            if not recorded.
    """

    granularity: Granularity
    shape: tuple[int, ...]
    ranges: NDArray[np.float32]
    totals: NDArray[np.int64]
    keys: NDArray[np.int32]
    counts: NDArray[np.int64]
    feed_ranges: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, 2), np.float32))

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.ranges)

    @property
    def finite(self) -> NDArray[np.int64]:
        """Number of finite values in each group, [G]."""
        return np.asarray(self.totals[:, 0] - self.totals[:, 1] - self.totals[:, 2])

    def split(self) -> Iterator[TensorStatistics]:
        """Yield the statistics of every group as `TensorStatistics`."""
        kept = self.feed_ranges if len(self.feed_ranges) else np.zeros((0, self.count, 2), np.float32)
        starts = np.searchsorted(self.keys, np.arange(self.count + 1, dtype=np.int64) * BIN_COUNT)
        for group, (start, stop) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            bins = self.keys[start:stop] - np.int32(group * BIN_COUNT)
            results = (self.ranges[group], self.totals[group], bins, self.counts[start:stop])
            yield TensorStatistics.from_results(*results, kept[:, group])

    def whole(self) -> TensorStatistics:
        """Return the statistics of all groups together."""
        histogram = np.zeros(BIN_COUNT, np.int64)
        np.add.at(histogram, self.keys % BIN_COUNT, self.counts)
        bins = np.flatnonzero(histogram).astype(np.int32)
        results = (_enclose(self.ranges), self.totals.sum(axis=0), bins, histogram[bins])
        return TensorStatistics.from_results(*results, _enclose(self.feed_ranges))

    def merge(self, other: GroupStatistics) -> GroupStatistics:
        """Return the statistics of both data sets, as in `TensorStatistics.merge`.

        Raises StatisticsError if the groups differ.
        """
        if (self.granularity, self.shape) != (other.granularity, other.shape):
            raise StatisticsError(
                f"statistics of {self.granularity}, {self.count} groups, and {other.granularity}, "
                f"{other.count} groups, do not merge; observe both with one plan"
            )
        keys, counts = merge_counts(self.keys, self.counts, other.keys, other.counts)
        kept = [one.feed_ranges for one in (self, other) if len(one.feed_ranges)]
        return GroupStatistics(
            self.granularity,
            self.shape,
            widen_ranges(self.ranges, other.ranges),
            self.totals + other.totals,
            keys,
            counts,
            np.concatenate(kept) if kept else self.feed_ranges,
        )

    def fingerprint(self) -> bytes:
        """Return bytes that identify these statistics except feed_ranges."""
        head = f"{self.granularity} {self.shape}".encode()
        arrays = (self.ranges.astype("<f4"), self.totals.astype("<i8"), self.keys.astype("<i4"))
        return b"".join([head, *(array.tobytes() for array in arrays), self.counts.astype("<i8").tobytes()])


def _enclose(ranges: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the union of the ranges of all groups: [..., groups, 2] -> [..., 2]."""
    ends = [ranges[..., 0].min(axis=-1, initial=np.inf), ranges[..., 1].max(axis=-1, initial=-np.inf)]
    return np.stack(ends, axis=-1).astype(np.float32)


def _read(observed: Observed, results: Results, feed_ranges: NDArray[np.float32]) -> GroupStatistics:
    ranges, totals, keys, counts = results
    return GroupStatistics(
        observed.granularity, observed.shape or (), ranges, totals, keys, counts, feed_ranges
    )


def _pack(groups: Mapping[str, GroupStatistics]) -> dict[str, NDArray[Any]]:
    if not groups:
        return {}
    names = sorted(groups)
    columns = [groups[name] for name in names]
    if len({len(one.feed_ranges) for one in columns}) > 1:
        raise StatisticsError(f"only some of the tensors {', '.join(names[:3])}, ... have feed_ranges")
    blocks = [json.dumps(one.granularity.attributes | {"shape": one.shape}) for one in columns]
    made = {
        "tensors": np.asarray(names, np.str_),
        "blocks": np.asarray(blocks, np.str_),
        "range": np.concatenate([one.ranges for one in columns]),
        "totals": np.concatenate([one.totals for one in columns]),
        "sizes": np.asarray([one.keys.size for one in columns], np.int64),
        "keys": np.concatenate([one.keys for one in columns]),
        "counts": np.concatenate([one.counts for one in columns]),
        "feed_ranges": np.concatenate(
            [one.feed_ranges.reshape(len(one.feed_ranges), one.count, 2) for one in columns], axis=1
        ),
    }
    return {f"group_{name}": array for name, array in made.items()}


def _unpack(columns: Columns) -> dict[str, GroupStatistics]:
    if "group_tensors" not in columns:
        return {}
    names, blocks, ranges, totals, sizes, keys, counts, feed_ranges = take_columns(columns, _FORMS)
    groups: dict[str, GroupStatistics] = {}
    group, key = 0, 0
    for name, text, size in zip(names, blocks, sizes, strict=True):
        words = json.loads(str(text))
        shape = tuple(int(n) for n in words.pop("shape"))
        count = prod(shape)
        mine, held = slice(group, group + count), slice(key, key + int(size))
        group, key = mine.stop, held.stop
        top = int(keys[held].max(initial=-1))
        if min(shape, default=1) < 0 or mine.stop > len(ranges) or top >= count * BIN_COUNT:
            raise ValueError(f"tensor {str(name)!r} has other groups than shape {list(shape)}")
        one = GroupStatistics(
            Granularity.of(**words),
            shape,
            ranges[mine],
            totals[mine],
            keys[held].astype(np.int32),
            counts[held],
            feed_ranges[:, mine] if len(feed_ranges) else np.zeros((0, 0, 2), np.float32),
        )
        counted = np.bincount(one.keys // BIN_COUNT, one.counts, minlength=one.count)
        if not np.array_equal(counted, one.finite):
            raise ValueError(f"the counts of the groups of tensor {str(name)!r} do not add up")
        groups[str(name)] = one
    if {group} != {len(ranges), len(totals)} or {key} != {keys.size, counts.size}:
        raise ValueError("the columns of groups are not as long as their shapes and sizes say")
    return groups


GROUPED_HISTOGRAM: Kind[GroupStatistics] = Kind(
    name="groups",
    noun="statistics of the groups of ",
    outputs=HISTOGRAM.outputs,
    suits=lambda observed: observed.shape is not None,
    empty=lambda observed: OctaveSum(observed, _read),
    read=_read,
    merge=GroupStatistics.merge,
    fingerprint=GroupStatistics.fingerprint,
    pack=lambda items: iter(_pack(dict(items)).items()),
    unpack=_unpack,
    memory=HISTOGRAM.memory,
    forms=_FORMS,
)

"""`GroupStatistics`: the statistics of a tensor's channels or blocks, each as exact as a whole tensor's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.bins import BIN_COUNT, merge_counts
from onnxfq.calibration.statistics.tensor import STATE_HEADER, TensorStatistics, state_ranges
from onnxfq.errors import StatisticsError
from onnxfq.numerics.granularity import Granularity

MOST_GROUPS = (1 << 31) // BIN_COUNT
"""Keys are 32-bit integers; `statistics.h` has the same."""

_COLUMNS = ("tensors", "blocks", "range", "totals", "sizes", "keys", "counts", "feed_ranges")


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of G groups of elements of one tensor, those that share a scale under `granularity`.

    shape: of such a scale, G its product; groups are numbered in C order. ranges float32 [G, 2]: over the
    finite values, (+inf, -inf) when there is none. totals int64 [G, 4]: elements, NaN, infinities, zeros.
    keys int32 [K] ascending, counts int64 [K]: the finite values' histograms, key = group * BIN_COUNT + bin.
    feed_ranges float32 [F, G, 2]: the ranges in each feed in order, for methods that hang on order; F is 0 if
    not kept.
    """

    granularity: Granularity
    shape: tuple[int, ...]
    ranges: NDArray[np.float32]
    totals: NDArray[np.int64]
    keys: NDArray[np.int32]
    counts: NDArray[np.int64]
    feed_ranges: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, 2), np.float32))

    @staticmethod
    def from_states(
        granularity: Granularity, shape: tuple[int, ...], parts: Iterable[NDArray[np.int64]]
    ) -> GroupStatistics:
        """Read the states of the groups, see `docs/custom-ops.md`; parts: some rows after the other."""
        ranges, totals = [np.zeros((0, 2), np.float32)], [np.zeros((0, 4), np.int64)]
        keys, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        done = 0
        for states in parts:
            ranges.append(state_ranges(states))
            totals.append(states[:, 2:6].copy())
            group, bins = np.nonzero(states[:, STATE_HEADER:])
            keys.append(((done + group) * BIN_COUNT + bins).astype(np.int32))
            counts.append(states[group, STATE_HEADER + bins])
            done += len(states)
        arrays = (
            np.concatenate(ranges),
            np.concatenate(totals),
            np.concatenate(keys),
            np.concatenate(counts),
        )
        return GroupStatistics(granularity, shape, *arrays)

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.ranges)

    @property
    def finite(self) -> NDArray[np.int64]:
        """How many values of each group are neither NaN nor infinite: [G]."""
        return np.asarray(self.totals[:, 0] - self.totals[:, 1] - self.totals[:, 2])

    def each(self) -> Iterator[TensorStatistics]:
        """Yield the statistics of every group as those of a tensor."""
        kept = self.feed_ranges if len(self.feed_ranges) else np.zeros((0, self.count, 2), np.float32)
        starts = np.searchsorted(self.keys, np.arange(self.count + 1, dtype=np.int64) * BIN_COUNT)
        for group, (start, stop) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            rmin, rmax = (float(end) for end in self.ranges[group])
            yield TensorStatistics(
                rmin,
                rmax,
                *(int(total) for total in self.totals[group]),
                bins=self.keys[start:stop] - np.int32(group * BIN_COUNT),
                counts=self.counts[start:stop],
                feed_ranges=kept[:, group],
            )

    def whole(self) -> TensorStatistics:
        """Return the statistics of all groups together."""
        histogram = np.zeros(BIN_COUNT, np.int64)
        np.add.at(histogram, self.keys % BIN_COUNT, self.counts)
        bins = np.flatnonzero(histogram).astype(np.int32)
        lows, highs = self.feed_ranges[..., 0], self.feed_ranges[..., 1]
        return TensorStatistics(
            float(self.ranges[:, 0].min(initial=np.inf)),
            float(self.ranges[:, 1].max(initial=-np.inf)),
            *(int(total) for total in self.totals.sum(axis=0)),
            bins=bins,
            counts=histogram[bins],
            feed_ranges=np.stack(
                [lows.min(axis=1, initial=np.inf), highs.max(axis=1, initial=-np.inf)], axis=1
            ).astype(np.float32),
        )

    def merge(self, other: GroupStatistics) -> GroupStatistics:
        """Return the statistics of both data sets, as `TensorStatistics.merge` does it.

        Raises StatisticsError for other groups.
        """
        if (self.granularity, self.shape) != (other.granularity, other.shape):
            raise StatisticsError(
                f"statistics of {self.granularity}, {self.count} groups, and {other.granularity}, "
                f"{other.count} groups, do not merge; observe both with one plan"
            )
        keys, counts = merge_counts(self.keys, self.counts, other.keys, other.counts)
        kept = [one.feed_ranges for one in (self, other) if len(one.feed_ranges)]
        lows = np.minimum(self.ranges[:, 0], other.ranges[:, 0])
        highs = np.maximum(self.ranges[:, 1], other.ranges[:, 1])
        return GroupStatistics(
            self.granularity,
            self.shape,
            np.stack([lows, highs], axis=1),
            self.totals + other.totals,
            keys,
            counts,
            np.concatenate(kept) if kept else self.feed_ranges,
        )

    def fingerprint(self) -> bytes:
        """Return what tells these statistics from all others, but for feed_ranges."""
        head = f"{self.granularity} {self.shape}".encode()
        arrays = (self.ranges.astype("<f4"), self.totals.astype("<i8"), self.keys.astype("<i4"))
        return b"".join([head, *(array.tobytes() for array in arrays), self.counts.astype("<i8").tobytes()])


def pack_groups(groups: Mapping[str, GroupStatistics]) -> dict[str, NDArray[Any]]:
    """Return the columns of a statistics file that hold `groups`; none where there are none.

    Raises StatisticsError when some have the ranges of each feed and others have not.
    """
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


def unpack_groups(arrays: Mapping[str, NDArray[Any]]) -> dict[str, GroupStatistics]:
    """Read what `pack_groups` made. Raises ValueError where it does not add up."""
    if "group_tensors" not in arrays:
        return {}
    missing = sorted({f"group_{name}" for name in _COLUMNS} - set(arrays))
    if missing:
        raise ValueError(f"it lacks {missing[0]!r}")
    ranges, totals, keys, counts, feed_ranges = (
        arrays[f"group_{name}"] for name in ("range", "totals", "keys", "counts", "feed_ranges")
    )
    groups: dict[str, GroupStatistics] = {}
    group, key = 0, 0
    for name, text, size in zip(
        arrays["group_tensors"], arrays["group_blocks"], arrays["group_sizes"], strict=True
    ):
        words = json.loads(str(text))
        shape = tuple(int(n) for n in words.pop("shape"))
        mine = slice(group, group + int(np.prod(shape, dtype=np.int64)))
        held = slice(key, key + int(size))
        group, key = mine.stop, held.stop
        one = GroupStatistics(
            Granularity.of(**words),
            shape,
            ranges[mine],
            totals[mine],
            keys[held],
            counts[held],
            feed_ranges[:, mine] if len(feed_ranges) else np.zeros((0, 0, 2), np.float32),
        )
        counted = np.bincount(one.keys // BIN_COUNT, one.counts, minlength=one.count)
        if len(one.ranges) != mine.stop - mine.start or not np.array_equal(counted, one.finite):
            raise ValueError(f"the counts of the groups of tensor {str(name)!r} do not add up")
        groups[str(name)] = one
    return groups

"""Channel ranges, a kind of statistics: the finite (rmin, rmax) of each channel, float32 [C, 2]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.kind import COUNTS, TEXTS, Columns, Kind, Observed, Results
from onnxfq.calibration.statistics.ranges import widen_ranges

Ranges = NDArray[np.float32]


@dataclass(frozen=True)
class ChannelNames:
    """Names of inputs and outputs for one tensor's channels in a model that merges ranges, float32 [C] each.

    Attributes:
        given: inputs with the lowest and the highest values so far.
        merged: outputs with the lowest and the highest values including the run.
    """

    given: tuple[str, str]
    merged: tuple[str, str]

    @staticmethod
    def from_tensor(tensor: str) -> ChannelNames:
        """Return the names for `tensor`."""
        low, high = f"{tensor}/channels/lowest", f"{tensor}/channels/highest"
        return ChannelNames((low, high), (f"{low}/merged", f"{high}/merged"))


class ChannelSum:
    """The range of each channel of one tensor over all feeds."""

    def __init__(self, observed: Observed) -> None:
        """Start without channels."""
        self._ranges: Ranges = np.zeros((0, 2), np.float32)

    def add(self, results: Results, feed: int) -> None:
        """Add the results of feed number `feed`."""
        self._ranges = merge_channels(self._ranges, _unsign(results[0]))

    @property
    def bytes(self) -> int:
        """Current size of the ranges."""
        return self._ranges.nbytes

    def result(self) -> Ranges:
        """Return the ranges, [0, 2] if there was no feed."""
        return self._ranges


def merge_channels(one: Ranges, other: Ranges) -> Ranges:
    """Return the union of the ranges, [C, 2]; if one side saw no feed and has no channels, the other side."""
    if not (len(one) and len(other)):
        return other if len(other) else one
    return widen_ranges(one, other)


def _unsign(ranges: Ranges) -> Ranges:
    return ranges + np.float32(0)  # -0 becomes +0, so that the order of feeds does not matter


def _pack(channels: Mapping[str, Ranges]) -> dict[str, NDArray[Any]]:
    if not channels:
        return {}
    names = sorted(channels)
    return {
        "channel_tensors": np.asarray(names, np.str_),
        "channel_sizes": np.asarray([len(channels[name]) for name in names], np.int64),
        "channel_range": np.concatenate([channels[name] for name in names]),
    }


def _unpack(columns: Columns) -> dict[str, Ranges]:
    if "channel_tensors" not in columns:
        return {}
    names, sizes, ranges = (columns[f"channel_{name}"] for name in ("tensors", "sizes", "range"))
    if ranges.shape != (int(sizes.sum()), 2) or len(names) != len(sizes):
        raise ValueError("the ranges of channels do not add up")
    parts = np.split(ranges.astype(np.float32), np.cumsum(sizes)[:-1])
    return dict(zip(map(str, names), parts, strict=True))


CHANNEL_RANGES: Kind[Ranges] = Kind(
    name="channels",
    noun="ranges of the channels of ",
    outputs=("channels",),
    suits=lambda observed: observed.channels > 0,
    empty=ChannelSum,
    read=lambda observed, results, feed_ranges: _unsign(results[0]),
    merge=merge_channels,
    fingerprint=lambda ranges: ranges.astype("<f4").tobytes(),
    pack=lambda items: iter(_pack(dict(items)).items()),
    unpack=_unpack,
    memory=lambda observed: 8 * observed.channels,
    forms={"channel_tensors": TEXTS, "channel_sizes": COUNTS, "channel_range": ("f", (None, 2))},
)

"""`Statistics`: what observers gathered from the tensors of one model, and its file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.groups import GroupStatistics, pack_groups, unpack_groups
from onnxfq.calibration.statistics.tensor import TensorStatistics
from onnxfq.errors import StatisticsError, nearest
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.support.digests import DATA_MODULUS
from onnxfq.support.files import UNREADABLE, load_npz, replacing
from onnxfq.support.records import one_line

FORMAT = "onnxfq.stats/1"
_COLUMNS = (
    "model_sha256",
    "feeds",
    "complete",
    "data",
    "tensors",
    "range",
    "totals",
    "sizes",
    "bins",
    "counts",
    "feed_ranges",
)


@dataclass(frozen=True)
class Statistics:
    """Statistics of the observed tensors of one model over a data set (`.stats.npz`).

    model_sha256: the model they were gathered from. feeds: how many were seen. complete: whether they
    are all of the data set, and not what was done when observing was interrupted. data: the sum of the
    feeds' SHA-256 modulo 2^256, which does not hang on their order. groups: of tensors that were observed by
    channels or blocks as well. channels: of tensors whose channels are to be equalized, the finite (rmin,
    rmax) of each, float32 [C, 2], (+inf, -inf) where a channel had no finite value.
    """

    model_sha256: str
    feeds: int
    tensors: Mapping[str, TensorStatistics]
    complete: bool = True
    data: int = 0
    groups: Mapping[str, GroupStatistics] = field(default_factory=dict)
    channels: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __getitem__(self, tensor: str) -> TensorStatistics:
        """Return the statistics of `tensor`. Raises StatisticsError with the nearest names."""
        try:
            return self.tensors[tensor]
        except KeyError:
            hint = nearest(tensor, self.tensors)
            raise StatisticsError(
                f"no statistics for tensor {tensor!r}: observe again with this plan{hint}"
            ) from None

    def __contains__(self, tensor: object) -> bool:
        """Tell whether there are statistics of `tensor`."""
        return tensor in self.tensors

    def of_groups(self, tensor: str, granularity: Granularity) -> GroupStatistics:
        """Return the statistics of the groups of `tensor` under `granularity`.

        Raises StatisticsError when there are none of the tensor, or none of such groups.
        """
        observed, found = self[tensor], self.groups.get(tensor)
        if found is not None and found.granularity == granularity:
            return found
        known = PER_TENSOR if found is None else found.granularity
        raise StatisticsError(
            f"the statistics of tensor {tensor!r}, over {observed.elements} elements, are {known}, and the "
            f"plan wants them {granularity}; observe again with this plan"
        )

    def of_channels(self, tensor: str) -> NDArray[np.float32]:
        """Return the range of each channel of `tensor`: [C, 2]. Raises StatisticsError when none was kept."""
        if tensor in self.channels:
            return self.channels[tensor]
        raise StatisticsError(
            f"the statistics of tensor {tensor!r}, over {self[tensor].elements} elements, have no ranges of "
            "its channels, which the plan equalizes; observe again with this plan, or use equalize: none"
        )

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both data sets. Raises StatisticsError for different models or tensors."""
        if self.model_sha256 != other.model_sha256:
            raise StatisticsError(
                f"statistics of different models do not merge ({self.model_sha256[:12]} and "
                f"{other.model_sha256[:12]}); observe both data sets with one model"
            )
        if set(self.tensors) != set(other.tensors):
            odd = sorted(set(self.tensors) ^ set(other.tensors))[0]
            raise StatisticsError(f"only one side has tensor {odd!r}; observe both with one plan")
        if set(self.channels) != set(other.channels):
            odd = sorted(set(self.channels) ^ set(other.channels))[0]
            raise StatisticsError(
                f"only one side has ranges of the channels of tensor {odd!r}; observe both with one plan"
            )
        if set(self.groups) != set(other.groups):
            odd = sorted(set(self.groups) ^ set(other.groups))[0]
            raise StatisticsError(
                f"only one side has statistics of the groups of tensor {odd!r}; observe both with one plan"
            )
        merged = {name: one.merge(other.tensors[name]) for name, one in self.tensors.items()}
        groups = {name: one.merge(other.groups[name]) for name, one in self.groups.items()}
        complete = self.complete and other.complete
        data = (self.data + other.data) % DATA_MODULUS
        channels = {name: wider(one, other.channels[name]) for name, one in self.channels.items()}
        feeds = self.feeds + other.feeds
        return Statistics(self.model_sha256, feeds, merged, complete, data, groups, channels)

    @property
    def sha256(self) -> str:
        """Fingerprint of what was observed: the same for the same data in any order, batching or split."""
        digest = hashlib.sha256(self.model_sha256.encode())
        for name in sorted(self.tensors):
            one = self.tensors[name]
            counts = (one.elements, one.nans, one.infinities, one.zeros)
            digest.update(f"{name} {one.rmin!r} {one.rmax!r} {counts}".encode("utf-8", "surrogatepass"))
            digest.update(one.bins.astype("<i4").tobytes() + one.counts.astype("<i8").tobytes())
        for name in sorted(self.groups):
            digest.update(name.encode("utf-8", "surrogatepass") + self.groups[name].fingerprint())
        for name in sorted(self.channels):
            digest.update(name.encode("utf-8", "surrogatepass") + self.channels[name].astype("<f4").tobytes())
        return digest.hexdigest()

    def check_model(self, sha256: str) -> None:
        """Raise StatisticsError when they were gathered from another model than the one with `sha256`."""
        if self.model_sha256 != sha256:
            raise StatisticsError(
                f"the statistics were gathered from a model with SHA-256 {self.model_sha256[:12]}, this "
                f"one has {sha256[:12]}; observe this model with `onnxfq observe`"
            )

    def check_data(self, data: int, feeds: int) -> None:
        """Raise StatisticsError when they are not those of `feeds` feeds with the digest `data`."""
        if (self.feeds, self.data) != (feeds, data):
            raise StatisticsError(
                f"the statistics were gathered from other data: {self.feeds} feeds with digest "
                f"{_hex(self.data)[:12]}, these are {feeds} with {_hex(data)[:12]}; observe these with "
                "`onnxfq observe`"
            )

    def save(self, path: str | Path) -> None:
        """Write an .npz that `load` reads, whole or not at all."""
        names = sorted(self.tensors)
        columns = [self.tensors[name] for name in names]
        sizes = np.asarray([c.bins.size for c in columns], np.int64)
        arrays: dict[str, NDArray[Any]] = {
            "format": np.asarray(FORMAT),
            "model_sha256": np.asarray(self.model_sha256),
            "feeds": np.asarray(self.feeds, np.int64),
            "complete": np.asarray(self.complete),
            "data": np.asarray(_hex(self.data)),
            "tensors": np.asarray(names, np.str_),
            "range": np.asarray([(c.rmin, c.rmax) for c in columns], np.float64).reshape(-1, 2),
            "totals": np.asarray(
                [(c.elements, c.nans, c.infinities, c.zeros) for c in columns], np.int64
            ).reshape(-1, 4),
            "sizes": sizes,
            "bins": np.concatenate([np.zeros(0, np.int32), *(c.bins for c in columns)]),
            "counts": np.concatenate([np.zeros(0, np.int64), *(c.counts for c in columns)]),
            "feed_ranges": _stack([c.feed_ranges for c in columns], names),
        }
        arrays |= pack_groups(self.groups) | _pack_channels(self.channels)
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)

    @staticmethod
    def load(path: str | Path) -> Statistics:
        """Read what `save` wrote. Raises StatisticsError in one line for any fault."""
        try:
            return _unpack(load_npz(path))
        except FileNotFoundError:
            raise StatisticsError(f"no such file: {path}; make it with `onnxfq observe`") from None
        except (*UNREADABLE, KeyError, TypeError, IndexError) as fault:
            text = one_line(fault)
            raise StatisticsError(
                f"{path} is not a statistics file ({text}); make it with `onnxfq observe`"
            ) from None


def _hex(data: int) -> str:
    return f"{data:064x}"


def _stack(ranges: list[NDArray[np.float32]], names: list[str]) -> NDArray[np.float32]:
    """Return [tensors, F, 2]; every tensor has its range of every feed, or none has."""
    if len({one.shape for one in ranges}) > 1:
        raise StatisticsError(f"only some of the tensors {', '.join(names[:3])}, ... have feed_ranges")
    return np.stack(ranges) if ranges else np.zeros((0, 0, 2), np.float32)


def _unpack(arrays: dict[str, NDArray[Any]]) -> Statistics:
    missing = sorted({"format", *_COLUMNS} - set(arrays))
    if missing:
        raise ValueError(f"it lacks {missing[0]!r}")
    if str(arrays["format"]) != FORMAT:
        raise ValueError(f"its format is {arrays['format']}, not {FORMAT}")
    sizes = arrays["sizes"]
    starts = np.cumsum(sizes) - sizes
    tensors = {}
    fields = (arrays["tensors"], arrays["range"], arrays["totals"], starts, sizes, arrays["feed_ranges"])
    columns = zip(*fields, strict=True)
    for name, (rmin, rmax), (elements, nans, infinities, zeros), start, size, feed_ranges in columns:
        one = TensorStatistics(
            float(rmin),
            float(rmax),
            int(elements),
            int(nans),
            int(infinities),
            int(zeros),
            bins=arrays["bins"][start : start + size],
            counts=arrays["counts"][start : start + size],
            feed_ranges=feed_ranges,
        )
        total = int(one.counts.sum()) + one.nans + one.infinities
        if not one.bins.size == one.counts.size == size or total != one.elements:
            raise ValueError(f"the counts of tensor {str(name)!r} do not add up")
        tensors[str(name)] = one
    return Statistics(
        str(arrays["model_sha256"]),
        int(arrays["feeds"]),
        tensors,
        complete=bool(arrays["complete"]),
        data=int(str(arrays["data"]), 16),
        groups=unpack_groups(arrays),
        channels=_unpack_channels(arrays),
    )


def wider(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the ranges that hold both, [C, 2]; with no channels, for no feed was seen, the other's."""
    if not (len(one) and len(other)):
        return other if len(other) else one
    return np.stack([np.minimum(one[:, 0], other[:, 0]), np.maximum(one[:, 1], other[:, 1])], axis=1)


def _pack_channels(channels: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    if not channels:
        return {}
    names = sorted(channels)
    return {
        "channel_tensors": np.asarray(names, np.str_),
        "channel_sizes": np.asarray([len(channels[name]) for name in names], np.int64),
        "channel_range": np.concatenate([channels[name] for name in names]),
    }


def _unpack_channels(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """Read what `_pack_channels` made. Raises ValueError where it does not add up."""
    if "channel_tensors" not in arrays:
        return {}
    names, sizes, ranges = (arrays[f"channel_{name}"] for name in ("tensors", "sizes", "range"))
    if ranges.shape != (int(sizes.sum()), 2) or len(names) != len(sizes):
        raise ValueError("the ranges of channels do not add up")
    parts = np.split(ranges.astype(np.float32), np.cumsum(sizes)[:-1])
    return dict(zip(map(str, names), parts, strict=True))

"""What observers gather from tensors: exact, mergeable statistics, and their file.

A histogram bin is the leading 15 bits of a float32: sign, 8 exponent bits, 6 mantissa bits. It
needs no range beforehand, a value's bin never depends on other values, and merging is integer
addition, so any batching, order or split of the data gives the same bits. A bin spans at most 1/64
of its value, so its middle is within 1/128 of every value in it; subnormal bins are as wide as the
smallest normal one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents import one_line
from onnxfq.errors import StatisticsError, nearest
from onnxfq.files import UNREADABLE, load_npz, replacing

BIN_SHIFT = 17
"""A float32's bits shifted right by this many places are its bin; `statistics.h` has the same."""
NEGATIVE = 1 << (31 - BIN_SHIFT)
"""Bins from here on hold negative values, their magnitude growing with the bin."""
BIN_COUNT = 2 * NEGATIVE

DATA_MODULUS = 1 << 256

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


STATE_HEADER = 8
"""Numbers of a state of operator MergeStatistics in front of its histogram, see `docs/custom-ops.md`."""
STATE_NANS, STATE_INFINITIES = 3, 4


def empty_state(histogram: bool = True) -> NDArray[np.int64]:
    """Return the state of operator MergeStatistics that has seen nothing: int64 [8], or [8 + BIN_COUNT]."""
    state = np.zeros(STATE_HEADER + (BIN_COUNT if histogram else 0), np.int64)
    state[:2] = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    return state


def bin_edges(bins: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (low, high) edges of `bins` in float64, low < high; zero is in bin 0."""
    magnitude = (bins & (NEGATIVE - 1)).astype(np.uint32)
    near = (magnitude << BIN_SHIFT).view(np.float32).astype(np.float64)
    far = ((magnitude + 1) << BIN_SHIFT).view(np.float32).astype(np.float64)
    negative = bins >= NEGATIVE
    return np.where(negative, -far, near), np.where(negative, -near, far)


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
        elements, nans, infinities, zeros = (int(count) for count in state[2:6])
        keys = state[:2].astype(np.int32)
        # Keys of negative floats have their magnitude bits flipped, so that they sort as integers.
        limits = (keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
        some = elements > nans + infinities
        bins = np.flatnonzero(state[STATE_HEADER:]).astype(np.int32)
        return TensorStatistics(
            rmin=float(limits[0]) if some else float("inf"),
            rmax=float(limits[1]) if some else float("-inf"),
            elements=elements,
            nans=nans,
            infinities=infinities,
            zeros=zeros,
            bins=bins,
            counts=state[STATE_HEADER + bins],
        )

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """Return the statistics of both data sets together: exact, associative, commutative.

        But for feed_ranges, which hang on order: they are joined in the order of merging.
        """
        bins = np.union1d(self.bins, other.bins).astype(np.int32)
        counts = np.zeros(bins.size, np.int64)
        counts[np.searchsorted(bins, self.bins)] += self.counts
        counts[np.searchsorted(bins, other.bins)] += other.counts
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


@dataclass(frozen=True)
class Statistics:
    """Statistics of the observed tensors of one model over a data set (`.stats.npz`).

    model_sha256: the model they were gathered from. feeds: how many were seen. complete: whether they
    are all of the data set, and not what was done when observing was interrupted. data: the sum of the
    feeds' SHA-256 modulo 2^256, which does not hang on their order.
    """

    model_sha256: str
    feeds: int
    tensors: Mapping[str, TensorStatistics]
    complete: bool = True
    data: int = 0

    def __getitem__(self, tensor: str) -> TensorStatistics:
        """Return the statistics of `tensor`. Raises StatisticsError with the nearest names."""
        try:
            return self.tensors[tensor]
        except KeyError:
            hint = nearest(tensor, self.tensors)
            raise StatisticsError(
                f"no statistics for tensor {tensor!r}: observe again with this plan{hint}"
            ) from None

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
        merged = {name: one.merge(other.tensors[name]) for name, one in self.tensors.items()}
        complete = self.complete and other.complete
        data = (self.data + other.data) % DATA_MODULUS
        return Statistics(self.model_sha256, self.feeds + other.feeds, merged, complete, data)

    @property
    def sha256(self) -> str:
        """Fingerprint of what was observed: the same for the same data in any order, batching or split."""
        digest = hashlib.sha256(self.model_sha256.encode())
        for name in sorted(self.tensors):
            one = self.tensors[name]
            counts = (one.elements, one.nans, one.infinities, one.zeros)
            digest.update(f"{name} {one.rmin!r} {one.rmax!r} {counts}".encode("utf-8", "surrogatepass"))
            digest.update(one.bins.astype("<i4").tobytes() + one.counts.astype("<i8").tobytes())
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
    )

"""Kinds of statistics: what each keeps of an observed tensor, and how that is gathered, merged and stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.granularity import PER_TENSOR, Granularity

Results = list[NDArray[Any]]
"""What observing a tensor gave: the arrays that a kind's `outputs` name."""

Columns = Mapping[str, NDArray[Any]]
"""Columns of a statistics file by name."""

Key = tuple[str, str]
"""A tensor and the name of a kind."""

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True)
class Observed:
    """A tensor that is observed, and how.

    granularity: which of its elements are observed together; shape: of a scale of these groups, None for the
    tensor as a whole. channels: how many have their ranges kept, 0 for none. stop: refuse NaN and infinities.
    feed_ranges: keep the range in every feed.
    """

    tensor: str
    granularity: Granularity = PER_TENSOR
    shape: tuple[int, ...] | None = None
    channels: int = 0
    stop: bool = True
    feed_ranges: bool = False

    @property
    def groups(self) -> int:
        """How many groups of elements are observed each by itself; 1 for the tensor as a whole."""
        return 1 if self.shape is None else int(np.prod(self.shape, dtype=np.int64))


class Accumulator(Protocol[Value_co]):
    """The sum of what runs gave; empty at first."""

    def add(self, results: Results, feed: int) -> None:
        """Add what feed number `feed` gave. Raises StatisticsError for values that are refused."""

    def result(self) -> Value_co:
        """Return the sum."""


@dataclass(frozen=True)
class Kind(Generic[Value]):
    """One kind of statistics of a tensor, by name in `KINDS`.

    Attributes:
        name: the second half of its keys in `Statistics`.
        noun: what messages put before "tensor 'x'".
        outputs: what a run gives it, as the observed model names them.
        suits: whether it is kept of a tensor.
        empty: a sum of nothing, to which runs are added.
        read: the value of results merged by the model itself; the ranges of every feed, float32
            [F, groups, 2], beside them.
        merge: the value of two data sets: exact, associative and commutative, but for the order of feeds.
        fingerprint: bytes that are the same for the same data in any order, and for no other.
        pack: the columns of a statistics file with the values by tensor.
        unpack: the values by tensor from these columns; ValueError where they do not add up.
        memory: bytes that the sum over a data set usually takes.
    """

    name: str
    noun: str
    outputs: tuple[str, ...]
    suits: Callable[[Observed], bool]
    empty: Callable[[Observed], Accumulator[Value]]
    read: Callable[[Observed, Results, NDArray[np.float32]], Value]
    merge: Callable[[Value, Value], Value]
    fingerprint: Callable[[Value], bytes]
    pack: Callable[[Mapping[str, Value]], dict[str, NDArray[Any]]]
    unpack: Callable[[Columns], dict[str, Value]]
    memory: Callable[[Observed], int]

    def to_keys(self, values: Mapping[str, Value]) -> dict[Key, Value]:
        """Return `values`, by tensor, by the keys of `Statistics`."""
        return {(tensor, self.name): value for tensor, value in values.items()}

"""Interface of a kind of statistics: how its values are accumulated, merged and stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.numerics.granularity import PER_TENSOR, Granularity

Results = list[NDArray[Any]]
"""Result of observing a tensor: the arrays of a kind's `outputs`."""

Columns = Mapping[str, NDArray[Any]]
"""Columns of a statistics file by name."""

Form = tuple[str, tuple[int | None, ...]]
"""Type of a column by NumPy's letters, and its shape with None for any size; "iu" are numbers from 0 up."""

TEXTS: Form = ("U", (None,))
COUNTS: Form = ("iu", (None,))

InputKey = tuple[str, InputView]
"""A tensor and how a layer reads it: layers that share both share the statistics."""

Key = tuple[Any, str]
"""An observed tensor or InputKey, and the name of a kind."""

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


def take_columns(columns: Columns, names: Collection[str]) -> list[NDArray[Any]]:
    """Return the columns of these names. Raises ValueError for a name that is missing."""
    if missing := sorted(set(names) - columns.keys()):
        raise ValueError(f"it lacks {missing[0]!r}")
    return [columns[name] for name in names]


@dataclass(frozen=True)
class Observed:
    """Observed tensor and its options.

    Attributes:
        tensor: name of the tensor.
        granularity: which elements form a group.
        shape: shape of a scale of these groups; None for the whole tensor.
        channels: number of channels whose ranges are recorded, 0 for none.
        stop: refuse NaN and infinities.
        feed_ranges: record the range of every feed.
    """

    tensor: str
    granularity: Granularity = PER_TENSOR
    shape: tuple[int, ...] | None = None
    channels: int = 0
    stop: bool = True
    feed_ranges: bool = False

    @property
    def groups(self) -> int:
        """Number of groups with separate statistics; 1 for the whole tensor."""
        return 1 if self.shape is None else int(np.prod(self.shape, dtype=np.int64))


class Accumulator(Protocol[Value_co]):
    """Sum of the results of runs; empty at first."""

    @property
    def bytes(self) -> int:
        """Current size."""

    def add(self, results: Results, feed: int) -> None:
        """Add the results of feed number `feed`. Raises StatisticsError for refused NaN and infinities."""

    def result(self) -> Value_co:
        """Return the sum."""


@dataclass(frozen=True)
class Kind(Generic[Value]):
    """One kind of statistics of a tensor, by name in `KINDS`.

    Attributes:
        name: second part of its keys in `Statistics`.
        noun: words of messages before "tensor 'x'".
        empty: an empty accumulator for the results of runs.
        merge: the value of two data sets: exact, associative, and commutative except for the order of feeds.
            Raises ValueError for values that do not merge.
        fingerprint: bytes that are equal for the same data in any order, and only for it.
        pack: columns of a statistics file from the values by what was observed.
        unpack: these values from the columns; raises ValueError for inconsistent counts.
        forms: type and shape of these columns, which `unpack` may rely on.
        suits: whether it is recorded for a tensor that a plan observes.
        outputs: results of a run, as named in the observed model.
        read: the value from results that the model itself merged, and the ranges of every feed, float32
            [F, groups, 2].
        memory: usual size in bytes of the accumulator at the end of a data set.
    """

    name: str
    noun: str
    empty: Callable[[Any], Accumulator[Value]]
    merge: Callable[[Value, Value], Value]
    fingerprint: Callable[[Value], bytes]
    pack: Callable[[Iterable[tuple[Any, Value]]], Iterator[tuple[str, NDArray[Any]]]]
    unpack: Callable[[Columns], dict[Any, Value]]
    forms: Mapping[str, Form] = field(default_factory=dict)
    suits: Callable[[Observed], bool] = lambda observed: False
    outputs: tuple[str, ...] = ()
    read: Callable[[Observed, Results, NDArray[np.float32]], Value] | None = None
    memory: Callable[[Observed], int] = lambda observed: 0

    def to_keys(self, values: Mapping[Any, Value]) -> dict[Key, Value]:
        """Return `values` by what was observed as values by key of `Statistics`."""
        return {(source, self.name): value for source, value in values.items()}

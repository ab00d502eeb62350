"""Kinds of statistics of the inputs of layers: their form in a file is an array for each field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.calibration.statistics.kind import Columns, InputKey, Kind, Results
from onnxfq.errors import StatisticsError
from onnxfq.support.records import Record

Ends = NDArray[np.float64]
"""Magnitudes of the largest and of the least value of each channel of an input, [2, channels]; at least 0."""


@dataclass(frozen=True)
class ObservedInput:
    """Observed input of layers.

    Attributes:
        tensor: name of the tensor.
        view: how the layers read it.
        ends: decide the grid on which values are added up; None if they are not known before.
    """

    tensor: str
    view: InputView
    ends: Ends | None = None


class _Summed(Protocol):
    def merge(self: Summed, other: Summed) -> Summed:
        """Return the value of both data sets. Raises ValueError for values that do not merge."""


Summed = TypeVar("Summed", bound=_Summed)

OfFeed = Callable[[ObservedInput, NDArray[np.float32], int], Summed]
"""Returns the value of one feed from the observed input, its array and the number of the feed."""


class InputSum(Generic[Summed]):
    """The value of one input over all feeds."""

    def __init__(self, observed: ObservedInput, of_feed: OfFeed[Summed]) -> None:
        """Start without feeds."""
        self._observed, self._of_feed = observed, of_feed
        self._sum: Summed | None = None

    def add(self, results: Results, feed: int) -> None:
        """Add the array of feed number `feed`. Raises StatisticsError for values that the kind refuses."""
        value = self._of_feed(self._observed, results[0], feed)
        self._sum = value if self._sum is None else self._sum.merge(value)

    @property
    def bytes(self) -> int:
        """Current size."""
        return 0 if self._sum is None else sum(array.nbytes for array in vars(self._sum).values())

    def result(self) -> Summed:
        """Return the value. Raises StatisticsError if there was no feed."""
        if self._sum is None:
            raise StatisticsError(f"no data reached tensor {self._observed.tensor!r}; give data")
        return self._sum


class _Name(Record):
    """Name of an input in the columns of a file: KIND/NAME/FIELD."""

    tensor: str
    view: InputView


def pack_inputs(
    kind: str, items: Iterable[tuple[InputKey, Iterable[tuple[str, NDArray[Any]]]]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns of a file for inputs and the fields of their values, one input after the other."""
    for (tensor, view), fields in items:
        name = _Name(tensor=tensor, view=view).model_dump_json()
        yield from ((f"{kind}/{name}/{field}", array) for field, array in fields)


def unpack_inputs(kind: str, columns: Columns) -> dict[InputKey, dict[str, str]]:
    """Return the columns of each input by field. Raises ValueError for damaged names."""
    inputs: dict[InputKey, dict[str, str]] = {}
    for column in columns:
        if column.startswith(f"{kind}/"):
            text, _, field = column.removeprefix(f"{kind}/").rpartition("/")
            name = _Name.model_validate_json(text)
            inputs.setdefault((name.tensor, name.view), {})[field] = column
    return inputs


def input_kind(
    name: str,
    noun: str,
    record: Callable[..., Summed],
    of_feed: OfFeed[Summed],
) -> Kind[Summed]:
    """Return a kind whose values are records of arrays with a method `merge`."""

    def unpack(columns: Columns) -> dict[Any, Summed]:
        return {
            key: record(**{field: columns[column] for field, column in fields.items()})
            for key, fields in unpack_inputs(name, columns).items()
        }

    return Kind(
        name=name,
        noun=noun,
        empty=lambda observed: InputSum(observed, of_feed),
        merge=lambda one, other: one.merge(other),
        fingerprint=lambda value: b"".join(array.tobytes() for array in vars(value).values()),
        pack=lambda items: pack_inputs(name, ((key, vars(value).items()) for key, value in items)),
        unpack=unpack,
    )

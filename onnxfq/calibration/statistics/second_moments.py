"""Second moments of the inputs of layers, a kind of statistics: sums on the grid that the ends decide.

Sums are computed, or read from a file, when a caller needs them: memory holds the sums of one input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_kinds import (
    Ends,
    ObservedInput,
    pack_inputs,
    unpack_inputs,
)
from onnxfq.calibration.statistics.input_means import ChannelEnds
from onnxfq.calibration.statistics.kind import Accumulator, Columns, InputKey, Kind
from onnxfq.calibration.statistics.moments import ByteGrid, MomentSums
from onnxfq.errors import StatisticsError
from onnxfq.support.arrays import UNREADABLE
from onnxfq.support.records import join_lines

OBSERVE_MOMENTS = "`onnxfq observe --moments`"
"""The command that makes them, in messages."""

_BLOCK = "sums"


@dataclass(frozen=True)
class InputSums:
    """Second moments of one input.

    Attributes:
        ends: of its channels, which decide the grid.
        read: computes the sums, or reads them from their file.
    """

    ends: Ends
    read: Callable[[], MomentSums]

    def merge(self, other: InputSums) -> InputSums:
        """Return the moments over both data sets. Raises ValueError for different grids."""
        if not np.array_equal(self.ends, other.ends):
            raise ValueError(
                "the parts have different grids; gather the ranges of both with --ranges, merge these, and "
                "gather the moments with --ranges-from"
            )
        return InputSums(self.ends, lambda: self.read().merge(other.read()))

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the columns of a file."""
        sums = self.read()
        yield "ends", self.ends
        yield "rows", np.asarray(sums.rows)
        yield from ((f"{_BLOCK}{number}", block) for number, block in enumerate(sums.blocks))


def is_read_later(column: str) -> bool:
    """Tell whether a column holds sums."""
    return column.startswith(f"{MOMENTS.name}/") and column.rpartition("/")[2].startswith(_BLOCK)


def _unpack(columns: Columns) -> dict[InputKey, InputSums]:
    found = {}
    for key, names in unpack_inputs(MOMENTS.name, columns).items():
        ends = ChannelEnds(columns[names.pop("ends")]).ends
        rows = columns[names.pop("rows")]
        if rows.shape or rows.dtype.kind not in "iu" or not 0 <= rows < 1 << 53:
            raise ValueError(f"the row count of {key[0]!r} is not a number")
        found[key] = InputSums(ends, _reader(columns, key, ends, int(rows), list(names.values())))
    return found


def _reader(
    columns: Columns, key: InputKey, ends: Ends, rows: int, names: list[str]
) -> Callable[[], MomentSums]:
    """Return a function that reads the sums, and raises StatisticsError if they do not fit the input."""

    def read() -> MomentSums:
        tensor, view = key
        try:
            blocks = tuple(columns[name] for name in names)
            window = prod(view.kernel) if view.op_type == "Conv" else 1
            shape, channels = blocks[0].shape if blocks else (), ends.shape[1]
            if len(shape) < 2 or view.group < 1 or prod(shape[:2]) != channels * window:
                raise ValueError(f"sums of shape {list(shape)} do not fit {channels} channels")
            steps = view.spread(ByteGrid.of(ends).steps)
            sums = MomentSums(blocks, steps, steps, rows)
            sums.check()
            return sums
        except UNREADABLE as fault:
            where = getattr(columns, "path", "the file")
            raise StatisticsError(
                f"{where} is not a statistics file (tensor {tensor!r}: {join_lines(fault)}); make it with "
                f"{OBSERVE_MOMENTS}"
            ) from None

    return read


def _no_accumulator(observed: ObservedInput) -> Accumulator[InputSums]:
    raise NotImplementedError("sampled inputs wait in a file: see `layers.moments.SampledInput`")


MOMENTS: Kind[InputSums] = Kind(
    name="moments",
    noun="moments of the input ",
    empty=_no_accumulator,
    merge=InputSums.merge,
    fingerprint=lambda value: b"".join(array.tobytes() for _, array in value.arrays()),
    pack=lambda items: pack_inputs(MOMENTS.name, ((key, value.arrays()) for key, value in items)),
    unpack=_unpack,
)

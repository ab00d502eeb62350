"""Outputs of a run as arrays: maps and sequences, flattened by position and key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EqualCounts:
    """Counts of equal elements, of all elements, and of rows that only one model returns; feeds add up."""

    equal: int = 0
    elements: int = 0
    rows_apart: int = 0

    def __add__(self, other: EqualCounts) -> EqualCounts:
        """Return the sums."""
        return EqualCounts(
            self.equal + other.equal, self.elements + other.elements, self.rows_apart + other.rows_apart
        )


@dataclass(frozen=True)
class FlatOutput:
    """The values of an output.

    Attributes:
        array: the output itself if it is an array; maps of a sequence as [maps, keys] if all have the same
            keys, in sorted order; other sequences in one row.
        form: shapes, lengths and keys: values of equal forms stand for each other.
        keys: of the maps of `array`, empty if it has none.
    """

    array: NDArray[Any]
    form: tuple[Any, ...]
    keys: tuple[Any, ...] = ()

    @staticmethod
    def of(value: object) -> FlatOutput:
        """Return the values of what a session returns: an array, a map, a sequence, or None."""
        if isinstance(value, np.ndarray):
            return FlatOutput(value, value.shape)
        if value is None:
            return FlatOutput(np.zeros(0, np.float32), (None,))
        if isinstance(value, Mapping):
            keys = tuple(sorted(value))
            return FlatOutput(np.asarray([[value[key] for key in keys]]), ("map", *keys), keys)
        assert isinstance(value, (list, tuple)), type(value)
        parts = [FlatOutput.of(part_value) for part_value in value]
        forms = tuple(part.form for part in parts)
        if len(set(forms)) == 1 and parts[0].keys:
            return FlatOutput(np.concatenate([p.array for p in parts]), forms, parts[0].keys)
        rows = [part.array.ravel() for part in parts]
        return FlatOutput(np.concatenate(rows) if rows else np.zeros(0, np.float32), forms)

    @property
    def is_discrete(self) -> bool:
        """Whether the values are equal or not, without noise in dB: integers, texts and booleans."""
        return self.array.dtype.kind not in "fc"

    def __str__(self) -> str:
        """Return the form in brackets, shortened."""
        return f"{list(self.form)}"[:80]

    def count_equal(self, other: FlatOutput) -> EqualCounts:
        """Return how many elements are equal.

        Arrays that differ in length along one axis are compared as collections of rows along it.
        """
        a, b = self.array, other.array
        if self.form == other.form:
            return EqualCounts(int(np.count_nonzero(a == b)), a.size)
        sizes = zip(a.shape, b.shape, strict=False)
        unlike = [axis for axis, (length, size) in enumerate(sizes) if length != size]
        if a.ndim != b.ndim or len(unlike) != 1:
            return EqualCounts(0, max(a.size, b.size))
        (axis,) = unlike
        rows, others = (Counter(map(repr, np.moveaxis(x, axis, 0).tolist())) for x in (a, b))
        longest, apart = max(a.shape[axis], b.shape[axis]), abs(a.shape[axis] - b.shape[axis])
        size = max(a.size, b.size)
        return EqualCounts(sum((rows & others).values()) * (size // longest), size, apart)

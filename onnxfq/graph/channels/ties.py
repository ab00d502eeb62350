"""Variables for channel factors, the equations between them, and their way through Reshape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Variable of every channel of a tensor: as many axes as the tensor, size 1 where all indices share one."""

FIXED = 0
"""The variable whose factor is 1."""


class Ties:
    """Variables that are equal to each other, or fixed to the factor 1 for a reason."""

    def __init__(self) -> None:
        """Start with the fixed variable only."""
        self.count = 1
        self._pairs: list[tuple[Ids, Ids]] = []
        self._fixed: dict[int, str] = {}

    def fresh(self, shape: tuple[int, ...]) -> Ids:
        """Return `shape` of new variables."""
        size = int(np.prod(shape, dtype=np.int64))
        first, self.count = self.count, self.count + size
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def tie(self, one: Ids, other: Ids) -> None:
        """Make the variables equal, broadcast as NumPy does. Raises ValueError if the shapes do not fit."""
        left, right = np.broadcast_arrays(one, other)
        if not np.array_equal(left, right):
            self._pairs.append((left.reshape(-1), right.reshape(-1)))

    def join(self, parts: Sequence[Ids]) -> Ids:
        """Make the variables of all parts equal, and return them in the shape that all parts broadcast to."""
        for part in parts[1:]:
            self.tie(parts[0], part)
        return np.broadcast_arrays(*parts)[0]

    def fix(self, ids: Ids, why: str) -> None:
        """Fix the variables to the factor 1; the first reason is kept."""
        for variable in np.unique(ids).tolist():
            if variable != FIXED:
                self._fixed.setdefault(variable, why)

    def is_fixed(self, ids: Ids) -> bool:
        """Tell whether all variables are fixed directly, so that another factor may replace theirs."""
        return all(int(v) == FIXED or int(v) in self._fixed for v in np.unique(ids))

    def solve(self) -> tuple[Ids, dict[int, str]]:
        """Return the class of every variable, [count], and the reasons of classes with the factor 1."""
        empty = np.zeros(0, np.int64)
        left = np.concatenate([empty, *(pair[0] for pair in self._pairs)])
        right = np.concatenate([empty, *(pair[1] for pair in self._pairs)])
        classes = connect(self.count, left, right)
        reasons = {FIXED: "it is summed or joined with a tensor of the factor 1"}
        for variable, why in self._fixed.items():
            reasons.setdefault(int(classes[variable]), why)
        return classes, reasons


def connect(count: int, left: Ids, right: Ids) -> Ids:
    """Return the connected component of each of `count` variables, named after its least member: [count]."""
    least = np.arange(count, dtype=np.int64)
    while True:
        lower = np.minimum(least[left], least[right])
        after = least.copy()
        for side in (left, right):
            np.minimum.at(after, least[side], lower)
        after = after[after]
        if np.array_equal(after, least):
            return least
        least = after


Shape = tuple[int | None, ...]
Block = tuple[Shape, Shape]
"""Neighbouring axes before and after, with equal products of their sizes."""


def reshape_ids(ids: Ids, before: Shape, after: Shape) -> Ids | None:
    """Return `ids` of a tensor of shape `before` reshaped to `after`; None if open sizes leave it unknown.

    Axes are matched in the smallest blocks of equal size, from the last axis to an open one, then from the
    first axis. All indices of the axes between must share one variable.
    """
    last = [(a[::-1], b[::-1]) for a, b in _match_blocks(before[::-1], after[::-1])][::-1]
    rest = (before[: len(before) - _axes(last, 0)], after[: len(after) - _axes(last, 1)])
    first = _match_blocks(*rest)
    between = (rest[0][_axes(first, 0) :], rest[1][_axes(first, 1) :])
    whole: list[int] = []  # the sizes to expand the axes of ids to, and their form after the reshape
    made: list[int] = []
    for sizes, sizes_after in (*first, between, *last):
        own = ids.shape[len(whole) : len(whole) + len(sizes)]
        if all(size == 1 for size in own):
            whole += [1] * len(sizes)
            made += [1] * len(sizes_after)
        elif (sizes, sizes_after) is between or None in (*sizes, *sizes_after):
            return None
        else:
            whole += cast("list[int]", list(sizes))
            made += cast("list[int]", list(sizes_after))
    return np.broadcast_to(ids, whole).reshape(made)


def _axes(blocks: list[Block], side: int) -> int:
    return sum(len(block[side]) for block in blocks)


def _match_blocks(before: Shape, after: Shape) -> list[Block]:
    """Return the smallest blocks from the first axis to the first open size."""
    found: list[Block] = []
    i = j = 0
    for end in range(1, len(before) + 1):
        if before[end - 1] is None:
            break
        size = prod(cast("tuple[int, ...]", before[i:end]))
        stop = j + 1
        while stop < len(after) and None not in after[j:stop] and _size(after[j:stop]) < size:
            stop += 1
        if stop > len(after) or None in after[j:stop]:
            break
        if _size(after[j:stop]) == size:
            found.append((before[i:end], after[j:stop]))
            i, j = end, stop
    return found


def _size(sizes: Shape) -> int:
    return prod(cast("tuple[int, ...]", sizes))

"""Variables for channel factors, and the equations between them."""

from __future__ import annotations

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

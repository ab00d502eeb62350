"""Second moments of a layer's inputs: exact sums that merge in any order.

Every channel is rounded to bytes on a separate grid. Products of bytes are added up in integers, which gives
the same numbers in any order and on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 127
"""Largest magnitude of a rounded input."""

EXACT_ROWS = 1024
"""Rows whose products have exact sums in float32: 1024 * 127^2 < 2^24."""

MOST_WAITING = 2 * EXACT_ROWS
"""Most rows of one product: adding it costs little next to computing it."""

BLOCK = 256
"""Columns of v in one matrix product; half of a symmetric matrix is left out in steps of them."""

Integers = NDArray[np.int32] | NDArray[np.int64]

Rows = NDArray[np.int8]
"""Rounded inputs of a layer, one column for each output position: [groups, inputs, rows]."""

MultiplyBytes = Callable[[Rows, Rows], NDArray[np.int32]]
"""Exact product of [batch, m, k] and [batch, k, n], whose magnitudes are at most `LARGEST`."""


def choose_steps(amax: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the step of each channel with this largest magnitude; 1 for zeros."""
    # Smaller steps, whose reciprocal float32 lacks, are for channels that are 0 in effect.
    return np.where(amax > 0, np.maximum(amax / LARGEST, 2.0**-100), 1.0)


def round_inputs(values: NDArray[np.float32], steps: NDArray[np.float64]) -> Rows:
    """Return `values` in whole steps, which broadcast to them."""
    found = values * (1 / steps).astype(np.float32)
    np.rint(found, out=found)
    return np.clip(found, -LARGEST, LARGEST, out=found).astype(np.int8)


def multiply_floats(left: Rows, right: Rows) -> NDArray[np.int32]:
    """Return the exact product of matrices of bytes, computed in float32."""
    product = np.zeros((*left.shape[:2], right.shape[2]), np.int32)
    for start in range(0, left.shape[2], EXACT_ROWS):
        part = slice(start, start + EXACT_ROWS)
        floats = left[:, :, part].astype(np.float32), right[:, part].astype(np.float32)
        product += np.matmul(*floats).astype(np.int32)
    return product


@dataclass(frozen=True)
class MomentSums:
    """Sum of u v^T over pairs of rows, in integers.

    Attributes:
        blocks: columns of the matrix, one block beside the other, int32 or int64 [groups, rows, columns].
            They end with the last row; a symmetric matrix lacks the rows above its diagonal blocks.
        left: steps of u, [groups, inputs].
        right: steps of v; the same array as `left` for a symmetric matrix.
        rows: number of rows.
    """

    blocks: tuple[Integers, ...]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rows: int = 0

    def merge(self, other: MomentSums) -> MomentSums:
        """Return the sums over the rows of both, which have the same steps."""
        pairs = zip(self.blocks, other.blocks, strict=True)
        rows = self.rows + other.rows
        wide = np.int64 if _is_wide(rows) else np.int32
        blocks = tuple(one.astype(wide) + two.astype(wide) for one, two in pairs)
        return MomentSums(blocks, self.left, self.right, rows)

    def check(self) -> None:
        """Raise ValueError unless the blocks have the shapes and the type of a symmetric matrix."""
        groups, inputs = self.left.shape
        found = [(block.shape, block.dtype.name) for block in self.blocks]
        starts = range(0, inputs, BLOCK)
        shapes = [(groups, inputs - start, min(BLOCK, inputs - start)) for start in starts]
        wanted = [(shape, "int64" if _is_wide(self.rows) else "int32") for shape in shapes]
        if found != wanted:
            raise ValueError(f"its sums are {found}, wanted are {wanted}")

    def matrix(self) -> NDArray[np.float64]:
        """Return the sum of u v^T as real numbers, [groups, inputs, inputs]."""
        whole = np.empty((*self.left.shape, self.right.shape[1]))
        start = 0
        for block in self.blocks:
            first, stop = whole.shape[1] - block.shape[1], start + block.shape[2]
            part = whole[:, first:, start:stop]
            np.multiply(block, self.left[:, first:, None], out=part)
            part *= self.right[:, None, start:stop]
            if self.right is self.left:
                whole[:, start:stop, stop:] = part[:, stop - start :].transpose(0, 2, 1)
            start = stop
        return whole


def _is_wide(rows: int) -> bool:
    """Tell whether sums over this many rows may leave int32."""
    return rows * LARGEST**2 > np.iinfo(np.int32).max


class MomentAdder:
    """Sums over rows that come in parts; rows wait until there are enough for one product."""

    def __init__(
        self,
        left: NDArray[np.float64],
        right: NDArray[np.float64],
        multiply: MultiplyBytes = multiply_floats,
    ) -> None:
        """Start without rows.

        Args:
            left: steps of u, [groups, inputs].
            right: steps of v; the same array as `left` for u v^T = u u^T.
            multiply: exact product of bytes.
        """
        self._steps = left, right
        self._symmetric = left is right
        self._multiply = multiply
        self._starts = range(0, right.shape[1], BLOCK)
        self._blocks: list[Integers] = [
            np.zeros((*left[:, self._first(start) :].shape, right[0, start : start + BLOCK].size), np.int32)
            for start in self._starts
        ]
        self._waiting: list[tuple[Rows, Rows]] = []
        self._rows = self._summed = 0

    def add(self, u: Rows, v: Rows) -> None:
        """Add rows `u` and `v` of `round_inputs`; the same array twice for plain moments."""
        for start in range(0, u.shape[2], MOST_WAITING):
            part = slice(start, start + MOST_WAITING)
            if self._rows - self._summed + u[:, :, part].shape[2] > MOST_WAITING:
                self._sum()
            self._waiting.append((u[:, :, part], v[:, :, part]))
            self._rows += u[:, :, part].shape[2]

    def result(self) -> MomentSums:
        """Return the sums over all rows."""
        self._sum()
        return MomentSums(tuple(self._blocks), *self._steps, self._rows)

    def _first(self, start: int) -> int:
        """Return the first row of the block whose columns begin at `start`."""
        return start if self._symmetric else 0

    def _sum(self) -> None:
        """Add the products of the waiting rows."""
        if not self._waiting:
            return
        u = np.concatenate([one for one, _ in self._waiting], axis=2)
        v = u if self._symmetric else np.concatenate([one for _, one in self._waiting], axis=2)
        self._waiting, self._summed = [], self._rows
        wide = _is_wide(self._rows)
        for number, start in enumerate(self._starts):
            columns = v[:, start : start + BLOCK].transpose(0, 2, 1)
            product = self._multiply(u[:, self._first(start) :], columns)
            if wide and self._blocks[number].dtype == np.int32:
                self._blocks[number] = self._blocks[number].astype(np.int64)
            self._blocks[number] += product

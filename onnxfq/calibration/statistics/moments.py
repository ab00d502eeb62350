"""Second moments of a layer's inputs: exact sums that merge in any order.

Every channel is rounded to bytes on a separate grid, whose step is a power of two. Products of bytes are
added up in integers, which gives the same numbers in any order and on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EXACT_ROWS = 1024
"""Rows whose products have exact sums in float32: 1024 * 128^2 = 2^24."""

MOST_WAITING = 2 * EXACT_ROWS
"""Most rows of one product: adding it costs little next to computing it."""

BLOCK = 256
"""Columns of v in one matrix product; half of a symmetric matrix is left out in steps of them."""

Integers = NDArray[np.int32] | NDArray[np.int64]

Rows = NDArray[np.int8]
"""Inputs of a layer on their grid, one column for each output position: [groups, inputs, rows]."""

MultiplyBytes = Callable[[Rows, Rows], NDArray[np.int32]]
"""Exact product of [batch, m, k] and the transpose of [batch, n, k]."""


def choose_steps(amax: NDArray[np.float64], largest: int) -> NDArray[np.float64]:
    """Return the step of each channel: the least power of two that reaches `amax`; 1 for zeros.

    Args:
        amax: largest magnitude of each channel.
        largest: number of steps.
    """
    fraction, exponent = np.frexp(amax / largest)
    # Smaller steps, whose reciprocal float32 lacks, are for channels that are 0 in effect.
    exponent = np.maximum(exponent - (fraction == 0.5), -100)
    return np.where(amax > 0, np.ldexp(1.0, exponent), 1.0)


@dataclass(frozen=True)
class ByteGrid:
    """Numbers to which an input is rounded: (byte + offset) * step.

    Attributes:
        steps: of each channel, or of each input of a layer.
        offset: 0, or 128 for an input without negative values, which can then use all 255 steps.
    """

    steps: NDArray[np.float64]
    offset: int = 0

    @classmethod
    def of(cls, ends: NDArray[np.float64]) -> ByteGrid:
        """Return the grid of an input whose channels have the magnitudes `ends`.

        Args:
            ends: [2, channels], of the largest value and of the least value below 0.
        """
        amax = ends.max(axis=0)
        return cls(choose_steps(amax, 127)) if ends[1].any() else cls(choose_steps(amax, 255), 128)

    def round(self, values: NDArray[np.float32], steps: NDArray[np.float64]) -> NDArray[np.int8]:
        """Return `values` as bytes.

        Args:
            values: of any shape.
            steps: of the grid, in a shape that broadcasts to the values.
        """
        # Exact: the steps are powers of two.
        found = values * (1 / steps).astype(np.float32)
        np.rint(found, out=found)
        found -= np.float32(self.offset)
        return np.clip(found, -128, 127, out=found).astype(np.int8)


def multiply_floats(left: Rows, right: Rows) -> NDArray[np.int32]:
    """Return the exact product of one matrix of bytes and the transpose of another, computed in float32."""
    product = np.zeros((*left.shape[:2], right.shape[1]), np.int32)
    for start in range(0, left.shape[2], EXACT_ROWS):
        part = slice(start, start + EXACT_ROWS)
        u, v = (one[:, :, part].astype(np.float32) for one in (left, right))
        product += np.matmul(u, v.swapaxes(1, 2)).astype(np.int32)
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
        """Raise ValueError unless the blocks have shapes, type and values of a symmetric sum of u u^T.

        That the sum is positive definite once it is damped is found where it is factorized.
        """
        groups, inputs = self.left.shape
        found = [(block.shape, block.dtype.name) for block in self.blocks]
        starts = range(0, inputs, BLOCK)
        shapes = [(groups, inputs - start, min(BLOCK, inputs - start)) for start in starts]
        wanted = [(shape, "int64" if _is_wide(self.rows) else "int32") for shape in shapes]
        if found != wanted:
            raise ValueError(f"its sums are {found}, wanted are {wanted}")
        for block in self.blocks:
            top = block[:, : block.shape[2]]
            if (np.einsum("gii->gi", top) < 0).any():
                raise ValueError("it holds no moments: a sum of squares is negative")
            if not np.array_equal(top, top.swapaxes(1, 2)):
                raise ValueError("it holds no moments: the sums are not symmetric")

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
    return rows * 255**2 > np.iinfo(np.int32).max


class MomentAdder:
    """Sums over rows that come in parts; rows wait until there are enough for one product."""

    def __init__(self, left: ByteGrid, right: ByteGrid, multiply: MultiplyBytes = multiply_floats) -> None:
        """Start without rows.

        Args:
            left: grid of u, with steps [groups, inputs].
            right: grid of v; the same object as `left` for u v^T = u u^T.
            multiply: exact product of bytes.
        """
        self._left, self._right = left, right
        self._symmetric = left is right
        self._multiply = multiply
        self._starts = range(0, right.steps.shape[1], BLOCK)
        self._blocks: list[Integers] = [
            np.zeros(
                (*left.steps[:, self._first(one) :].shape, right.steps[0, self._part(one)].size), np.int32
            )
            for one in self._starts
        ]
        sides = (left,) if self._symmetric else (left, right)
        self._totals = [np.zeros(grid.steps.shape, np.int64) for grid in sides]
        self._waiting: list[tuple[Rows, Rows]] = []
        self._rows = self._summed = 0

    def add(self, u: Rows, v: Rows) -> None:
        """Add rows `u` and `v`; the same array twice for plain moments."""
        for start in range(0, u.shape[2], MOST_WAITING):
            part = slice(start, start + MOST_WAITING)
            if self._rows - self._summed + u[:, :, part].shape[2] > MOST_WAITING:
                self._sum()
            self._waiting.append((u[:, :, part], v[:, :, part]))
            self._rows += u[:, :, part].shape[2]

    def result(self) -> MomentSums:
        """Return the sums over all rows."""
        self._sum()
        blocks = tuple(map(self._with_offsets, self._starts, self._blocks))
        return MomentSums(blocks, self._left.steps, self._right.steps, self._rows)

    def _with_offsets(self, start: int, block: Integers) -> Integers:
        """Return sums of (u + p) (v + q)^T instead of u v^T."""
        p, q = self._left.offset, self._right.offset
        rows, columns = self._totals[0][:, self._first(start) :], self._totals[-1][:, self._part(start)]
        more = q * rows[:, :, None] + p * columns[:, None] + self._rows * p * q
        found: Integers = block + more.astype(block.dtype)
        return found

    def _part(self, start: int) -> slice:
        """Return the columns of the block that begins at `start`."""
        return slice(start, start + BLOCK)

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
        if self._left.offset or self._right.offset:
            for total, one in zip(self._totals, (u, v), strict=False):
                total += one.sum(axis=2, dtype=np.int32)
        wide = _is_wide(self._rows)
        for number, start in enumerate(self._starts):
            product = self._multiply(u[:, self._first(start) :], v[:, self._part(start)])
            if wide and self._blocks[number].dtype == np.int32:
                self._blocks[number] = self._blocks[number].astype(np.int64)
            self._blocks[number] += product

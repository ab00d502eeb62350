"""Second moments of a layer's inputs: exact sums that merge in any order.

Every channel is rounded to integers of 9 bits on a separate grid, whose step is a power of two. Sums of their
products below 2^24 are exact in float32, so that matrix products of pieces, added up in integers, give the
same numbers in any order and on any number of threads. Inputs without negative values fit into bytes, whose
products a caller may compute in integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 255
"""Largest magnitude of a rounded input."""

PIECE = 256
"""Rows whose products surely have exact sums in float32: 256 * 255^2 < 2^24."""

EXACT = 1 << 24
"""Largest sum of squares of a column in one product; no sum of products of two columns exceeds theirs."""

MOST_WAITING = 2048
"""Most rows of one product: adding it costs little next to computing it."""

BLOCK = 256
"""Columns of u in one matrix product; half of a symmetric matrix is left out in steps of them."""

Integers = NDArray[np.int32] | NDArray[np.int64]

MultiplyBytes = Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.int32]]
"""Exact product of uint8 [batch, m, k] and [batch, k, n]."""

Rows = NDArray[np.float32]
"""Inputs of a layer, one row for each output position: [rows, groups, inputs]."""

Waiting = NDArray[np.float32] | NDArray[np.uint8]
"""Rows as integers."""


def choose_steps(amax: NDArray[np.float64], largest: int = LARGEST) -> NDArray[np.float64]:
    """Return the step of each channel: the least power of two that reaches `amax`; 1 for zeros.

    Args:
        amax: largest magnitude of each channel.
        largest: magnitude of the integers.
    """
    fraction, exponent = np.frexp(amax / largest)
    # Smaller steps, whose reciprocal float32 lacks, are for channels that are 0 in effect.
    exponent = np.maximum(exponent - (fraction == 0.5), -100)
    return np.where(amax > 0, np.ldexp(1.0, exponent), 1.0)


@dataclass(frozen=True)
class MomentSums:
    """Sum of u v^T over pairs of rows, in integers.

    Attributes:
        blocks: rows of the matrix, one block below the other, int32 or int64 [groups, rows, columns]. They
            end with the last column; a symmetric matrix lacks the columns left of its diagonal blocks.
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
        shapes = [(groups, min(BLOCK, inputs - start), inputs - start) for start in starts]
        wanted = [(shape, "int64" if _is_wide(self.rows) else "int32") for shape in shapes]
        if found != wanted:
            raise ValueError(f"its sums are {found}, wanted are {wanted}")

    def matrix(self) -> NDArray[np.float64]:
        """Return the sum of u v^T as real numbers, [groups, inputs, inputs]."""
        whole = np.empty((*self.left.shape, self.right.shape[1]))
        start = 0
        for block in self.blocks:
            stop, first = start + block.shape[1], whole.shape[2] - block.shape[2]
            whole[:, start:stop, first:] = block
            if self.right is self.left:
                whole[:, stop:, start:stop] = whole[:, start:stop, stop:].transpose(0, 2, 1)
            start = stop
        whole *= self.left[:, :, None]
        whole *= self.right[:, None, :]
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
        multiply_bytes: MultiplyBytes | None = None,
    ) -> None:
        """Start without rows.

        Args:
            left: steps of u, [groups, inputs].
            right: steps of v; the same array as `left` for u v^T = u u^T.
            multiply_bytes: for rows without negative values; float32 is used without it.
        """
        self._steps = left, right
        self._multiply_bytes = multiply_bytes
        inputs = left.shape[1]
        starts = range(0, inputs, BLOCK)
        self._slices = [
            (slice(start, start + BLOCK), slice(start if left is right else 0, None)) for start in starts
        ]
        self._blocks: list[Integers] = [
            np.zeros((len(left), len(range(inputs)[one]), len(range(inputs)[other])), np.int32)
            for one, other in self._slices
        ]
        self._waiting: list[tuple[Waiting, Waiting]] = []
        self._squares: NDArray[np.float32] | None = None
        self._rows = self._summed = 0

    def add(self, u: Rows, v: Rows) -> None:
        """Add rows `u` and `v`, [rows, groups, inputs]; the same array twice for plain moments."""
        left, right = self._steps
        first = to_integers(u, left)
        second = first if v is u and right is left else to_integers(v, right)
        if self._multiply_bytes is not None and min(first.min(initial=0), second.min(initial=0)) >= 0:
            self._add_bytes(first.astype(np.uint8), None if second is first else second.astype(np.uint8))
            return
        for start in range(0, len(first), PIECE):
            part = first[start : start + PIECE], second[start : start + PIECE]
            squares = np.maximum(*(np.einsum("rgi,rgi->gi", one, one) for one in part))
            total = squares if self._squares is None else self._squares + squares
            if self._waiting and (
                self._squares is None
                or total.max(initial=0) >= EXACT
                or self._rows - self._summed + len(part[0]) > MOST_WAITING
            ):
                self._multiply()
                total = squares
            self._waiting.append(part)
            self._squares = total
            self._rows += len(part[0])

    def _add_bytes(self, first: NDArray[np.uint8], other: NDArray[np.uint8] | None) -> None:
        second = first if other is None else other
        for start in range(0, len(first), MOST_WAITING):
            part = first[start : start + MOST_WAITING], second[start : start + MOST_WAITING]
            if self._squares is not None or self._rows - self._summed + len(part[0]) > MOST_WAITING:
                self._multiply()
            self._waiting.append(part)
            self._rows += len(part[0])

    def result(self) -> MomentSums:
        """Return the sums over all rows."""
        self._multiply()
        return MomentSums(tuple(self._blocks), *self._steps, self._rows)

    def _multiply(self) -> None:
        """Add the products of the waiting rows: bytes, or floats whose sums of squares are exact."""
        if not self._waiting:
            return
        first = np.concatenate([u for u, _ in self._waiting]).transpose(1, 0, 2)
        symmetric = self._steps[0] is self._steps[1]
        second = first if symmetric else np.concatenate([v for _, v in self._waiting]).transpose(1, 0, 2)
        multiply = np.matmul if self._squares is not None else self._multiply_bytes
        assert multiply is not None
        self._waiting, self._squares, self._summed = [], None, self._rows
        wide = _is_wide(self._rows)
        for number, (one, other) in enumerate(self._slices):
            product = multiply(first[:, :, one].transpose(0, 2, 1), second[:, :, other])
            if wide and self._blocks[number].dtype == np.int32:
                self._blocks[number] = self._blocks[number].astype(np.int64)
            self._blocks[number] += product.astype(np.int32, copy=False)


def to_integers(
    values: NDArray[np.float32], steps: NDArray[np.float64], largest: int = LARGEST
) -> NDArray[np.float32]:
    """Return `values` in whole steps, of a magnitude up to `largest`; the steps broadcast to them."""
    # Exact: the steps are powers of two.
    found = values * (1 / steps).astype(np.float32)
    np.rint(found, out=found)
    return np.clip(found, -largest, largest, out=found)

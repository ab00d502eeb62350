"""Second moments of a layer's inputs: exact sums that merge in any order.

Every channel is rounded to integers of 9 bits on a separate grid, whose step is a power of two. Sums of up
to 256 products of such integers are exact in float32, and sums of up to 2^37 in float64, so that matrix
products of pieces give the same numbers in any order and on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 255
"""Largest magnitude of a rounded input."""

PIECE = 256
"""Rows whose products are summed in float32: 256 * 255^2 < 2^24."""

Rows = NDArray[np.float32]
"""Inputs of a layer, one row for each output position: [rows, groups, inputs]."""


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
        sums: integers as float64, [groups, inputs, inputs].
        left: steps of u, [groups, inputs].
        right: steps of v.
        rows: number of rows.
    """

    sums: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rows: int = 0

    @staticmethod
    def of(u: Rows, v: Rows, left: NDArray[np.float64], right: NDArray[np.float64]) -> MomentSums:
        """Return the sums over rows `u` and `v` on grids with the steps `left` and `right`."""
        adder = MomentAdder(left, right)
        adder.add(u, v)
        return adder.result()

    def __add__(self, other: MomentSums) -> MomentSums:
        """Return the sums over the rows of both. Raises ValueError for different grids."""
        if not (np.array_equal(self.left, other.left) and np.array_equal(self.right, other.right)):
            raise ValueError("moments on different grids do not add up")
        return MomentSums(self.sums + other.sums, self.left, self.right, self.rows + other.rows)

    def matrix(self) -> NDArray[np.float64]:
        """Return the sum of u v^T as real numbers."""
        return np.asarray(self.sums * self.left[:, :, None] * self.right[:, None, :])


class MomentAdder:
    """Sums over rows that come in parts; rows wait until there are enough for one product."""

    def __init__(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
        """Start without rows, with the steps of u and of v, [groups, inputs]."""
        self._steps = left, right
        self._sums = np.zeros((*left.shape, right.shape[1]))
        self._waiting: list[tuple[Rows, Rows]] = []
        self._rows = self._summed = 0

    def add(self, u: Rows, v: Rows) -> None:
        """Add rows `u` and `v`, [rows, groups, inputs]; the same array twice for plain moments."""
        left, right = self._steps
        first = to_integers(u, left)
        self._waiting.append((first, first if v is u and right is left else to_integers(v, right)))
        self._rows += len(u)
        if self._rows - self._summed >= PIECE:
            self._multiply()

    def result(self) -> MomentSums:
        """Return the sums over all rows."""
        self._multiply()
        return MomentSums(self._sums, *self._steps, self._rows)

    def _multiply(self) -> None:
        if not self._waiting:
            return
        same = all(u is v for u, v in self._waiting)
        first = np.concatenate([u for u, _ in self._waiting])
        second = first if same else np.concatenate([v for _, v in self._waiting])
        self._waiting, self._summed = [], self._rows
        for start in range(0, len(first), PIECE):
            at = slice(start, start + PIECE)
            if len(self._sums) == 1:  # NumPy computes only a half of one matrix times itself
                left = first[at, 0]
                self._sums[0] += left.T @ (left if same else second[at, 0])
            else:
                self._sums += np.matmul(first[at].transpose(1, 2, 0), second[at].transpose(1, 0, 2))


def to_integers(
    values: NDArray[np.float32], steps: NDArray[np.float64], largest: int = LARGEST
) -> NDArray[np.float32]:
    """Return `values` in whole steps, of a magnitude up to `largest`; the steps broadcast to them."""
    # Exact: the steps are powers of two.
    return np.clip(np.rint(values * (1 / steps).astype(np.float32)), -largest, largest)

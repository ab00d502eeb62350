"""Second moments of a layer's inputs: exact sums that merge in any order.

Every channel is rounded to integers of 12 bits on a grid of its own, whose step is a power of two. Products
of such integers, and sums of up to 2^31 of them, are exact in float64, so that a matrix product gives the same
numbers in any order and on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 2047
"""Largest magnitude of a rounded input."""

Rows = NDArray[np.float32]
"""Inputs of a layer, one row for each output position: [rows, groups, inputs]."""


def choose_steps(amax: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the step of each channel: the least power of two that reaches `amax`; 1 for zeros."""
    fraction, exponent = np.frexp(amax / LARGEST)
    return np.where(amax > 0, np.ldexp(1.0, exponent - (fraction == 0.5)), 1.0)


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
        first = _to_integers(u, left)
        second = first if v is u and right is left else _to_integers(v, right)
        return MomentSums(np.matmul(first.transpose(1, 2, 0), second.transpose(1, 0, 2)), left, right, len(u))

    def __add__(self, other: MomentSums) -> MomentSums:
        """Return the sums over the rows of both. Raises ValueError for different grids."""
        if not (np.array_equal(self.left, other.left) and np.array_equal(self.right, other.right)):
            raise ValueError("moments on different grids do not add up")
        return MomentSums(self.sums + other.sums, self.left, self.right, self.rows + other.rows)

    def matrix(self) -> NDArray[np.float64]:
        """Return the sum of u v^T as real numbers."""
        return np.asarray(self.sums * self.left[:, :, None] * self.right[:, None, :])


def _to_integers(rows: Rows, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(np.rint(rows / steps), -LARGEST, LARGEST)

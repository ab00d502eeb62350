"""Orthogonal matrices that spread each channel over many: Kronecker products of small ones.

Sources: Sylvester's doubling and both constructions of Paley (1933) for Hadamard matrices; the rotations of
S. Ashkboos et al., QuaRot (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_SMALL = 16
"""Most rows of a joined factor: few passes over the values, and few products in each."""

_LEAST_MIXED = 4
"""Fewest rows of a random factor that leaves ones alone: there is little to choose with 2 or 3."""


@dataclass(frozen=True)
class Rotation:
    """An orthogonal matrix.

    Attributes:
        factors: square matrices, whose Kronecker product it is.
    """

    factors: tuple[Matrix, ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return prod(len(factor) for factor in self.factors)

    def turn(self, vectors: NDArray[Any]) -> Matrix:
        """Return the products of the matrix with `vectors`, [..., size]."""
        turned = np.asarray(vectors, np.float64)
        turned = turned.reshape(*turned.shape[:-1], *(len(factor) for factor in self.factors))
        for place, factor in enumerate(self.factors, start=-len(self.factors)):
            # Not a product of matrices: BLAS sums in an order that may depend on the machine's threads.
            moved = np.einsum("ij,...j->...i", factor, np.moveaxis(turned, place, -1))
            turned = np.moveaxis(moved, -1, place)
        return turned.reshape(vectors.shape)


def spread(size: int, keeps_ones: bool = False, seed: int = 0) -> Rotation:
    """Return a rotation of `size` channels whose entries are as equal as is known.

    It is a Hadamard matrix over its root, if `size` is an order of Sylvester's doublings of Paley's matrices;
    else the part of it that is odd is random.

    Args:
        size: number of channels.
        keeps_ones: whether the vector of ones stays as it is: the matrix of order 4 does that, and what is
            left of `size` is random. A mean and a variance over the channels stay too then.
        seed: of the random part.
    """
    if keeps_ones:
        rest, doublings = size, 0
        while rest % 4 == 0 and not 1 < rest // 4 < _LEAST_MIXED:
            rest, doublings = rest // 4, doublings + 1
        known: Matrix | None = None
        step = np.full((4, 4), 0.5) - np.eye(4)
    else:
        doublings = (size & -size).bit_length() - 1
        rest, known = size >> doublings, None
        orders = [rest << n for n in range(2, doublings + 1)] if rest > 1 else []
        for order in orders:
            known = _paley(order)
            if known is not None:
                rest, doublings = order, doublings - (order // rest).bit_length() + 1
                break
        step = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2.0)
    if known is None and rest > 1:
        known = _draw(rest, keeps_ones, seed)
    joined = _SMALL.bit_length() - 1 if len(step) == 2 else (_SMALL.bit_length() - 1) // 2
    counts = [joined] * (doublings // joined) + [doublings % joined] * bool(doublings % joined)
    steps = [_power(step, count) for count in counts]
    return Rotation(tuple([*([] if known is None else [known]), *steps]) or (np.eye(1),))


def _power(matrix: Matrix, count: int) -> Matrix:
    """Return the Kronecker product of `count` times the same matrix."""
    return matrix if count == 1 else np.asarray(np.kron(matrix, _power(matrix, count - 1)))


def _paley(order: int) -> Matrix | None:
    """Return a Hadamard matrix over its root by one of Paley's constructions; None if none has this order."""
    for prime, wanted in ((order - 1, 3), (order // 2 - 1, 1)):
        if prime % 4 != wanted or any(prime % n == 0 for n in range(2, int(prime**0.5) + 1)):
            continue
        squares = {n * n % prime for n in range(1, prime)}
        character = np.array([0] + [1 if n in squares else -1 for n in range(1, prime)], np.float64)
        conference = np.zeros((prime + 1, prime + 1))
        places = np.arange(prime)
        conference[1:, 1:] = character[(places[:, None] - places) % prime]
        conference[0, 1:], conference[1:, 0] = 1.0, -1.0 if wanted == 3 else 1.0
        if wanted == 3:
            return np.asarray((np.eye(order) + conference) / np.sqrt(order))
        turned = np.kron(conference, [[1.0, 1.0], [1.0, -1.0]])
        turned += np.kron(np.eye(prime + 1), [[1.0, -1.0], [-1.0, -1.0]])
        return np.asarray(turned / np.sqrt(order))
    return None


def _draw(size: int, keeps_ones: bool, seed: int) -> Matrix:
    """Return a random orthogonal matrix, a product of reflections; they leave ones alone if asked to."""
    drawn = np.random.default_rng([size, seed]).normal(size=(2 * size, size))
    if keeps_ones:
        drawn -= drawn.mean(axis=1, keepdims=True)
    matrix = np.eye(size)
    for vector in drawn:
        # Sums element by element have the same bits on every machine.
        shares = (matrix * vector[:, None]).sum(axis=0) / np.square(vector).sum()
        matrix -= 2.0 * vector[:, None] * shares
    return matrix

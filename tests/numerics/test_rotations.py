"""Orthogonal matrices: their definition, by NumPy, for orders of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from loops import loop_over

from onnxfq.numerics.rotations import spread

KNOWN = [1, 2, 4, 8, 12, 20, 24, 28, 36, 40, 44, 48, 60, 64, 80, 96, 128, 144, 576, 896]
"""Orders with a Hadamard matrix of Sylvester or Paley."""
OTHERS = [3, 5, 6, 10, 43, 52, 172]


def matrix_of(size: int, keeps_ones: bool) -> np.ndarray:
    """Return a rotation as a matrix: its products with the unit vectors are the columns."""
    return spread(size, keeps_ones).turn(np.eye(size)).T


@pytest.mark.parametrize("keeps_ones", [False, True])
@loop_over("size", [*KNOWN, *OTHERS])
def test_they_are_orthogonal(size: int, keeps_ones: bool) -> None:
    """Q Q' = 1, and Q 1 = 1 where a mean has to stay."""
    matrix = matrix_of(size, keeps_ones)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-14 * size)  # sums of `size` terms
    if keeps_ones:
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-14 * size)


@loop_over("size", KNOWN)
def test_hadamard_matrices_have_one_magnitude(size: int) -> None:
    """A channel that is larger than all others becomes equally large in all."""
    np.testing.assert_allclose(np.abs(matrix_of(size, False)), size**-0.5, rtol=1e-12)  # factors are rounded


def test_powers_of_four_keep_ones_and_one_magnitude() -> None:
    """Their matrices have equal sums of rows, so that nothing is random."""
    np.testing.assert_array_equal(np.abs(matrix_of(256, True)), 1 / 16)


def test_a_seed_draws_another_random_part() -> None:
    """The same seed gives the same bits; a known matrix has none."""
    one, same, other = (spread(5, seed=seed).turn(np.eye(5)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(spread(12, seed=0).turn(np.eye(12)), spread(12, seed=1).turn(np.eye(12)))

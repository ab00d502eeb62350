"""Products of bytes: a kernel with a single wrong element is not used."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfq.calibration.statistics.moments import multiply_floats
from onnxfq.runtime.integer_products import _is_exact, find_byte_products

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("shape", [(1, 32, 37, 120), (2, 120, 872, 120), (1, 1, 1, 1), (1, 96, 1024, 70)])
def test_products_are_exact(shape: tuple[int, int, int, int]) -> None:
    """The chosen product is NumPy's of whole numbers; the second matrix is given by columns."""
    groups, rows, depth, columns = shape
    left = RANDOM.integers(-128, 128, (groups, rows, depth)).astype(np.int8)
    right = RANDOM.integers(-128, 128, (groups, columns, depth)).astype(np.int8)
    wanted = np.matmul(left.astype(np.int64), right.swapaxes(1, 2).astype(np.int64))
    np.testing.assert_array_equal(find_byte_products()(left, right), wanted)


@pytest.mark.parametrize("rows, columns", [(32, 120), (70, 37), (1, 1)])
def test_a_wrong_kernel_is_found(rows: int, columns: int) -> None:
    """One element of one shape is enough."""

    def multiply(left, right):
        made = multiply_floats(left, right).copy()
        if made.shape[1:] == (rows, columns):
            made[0, -1, -1] += 1
        return made

    assert _is_exact(multiply_floats) and not _is_exact(multiply)

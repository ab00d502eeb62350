"""Granularities: shapes of parameters, checked against the pieces that NumPy cuts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfq.errors import SpecError
from onnxfq.numerics.granularity import PER_TENSOR, Granularity, normalize_axis
from onnxfq.numerics.layout import Layout

SHAPES = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(SHAPES, st.data())
def test_axis_is_a_python_index(shape, data):
    """Negative axes count from the end, as in Python and NumPy."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    assert normalize_axis(axis, len(shape)) == range(len(shape))[axis]


@given(SHAPES, st.data())
def test_one_parameter_for_each_slice_or_block(shape, data):
    """Per axis and blocked, there are as many parameters along the axis as NumPy cuts pieces."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    block = data.draw(st.integers(1, 10))
    x = np.zeros(shape)
    assert Layout(Granularity(axis), shape).scale_shape == (x.shape[axis],)
    reduced = np.add.reduceat(x, range(0, x.shape[axis], block), axis) if x.shape[axis] else x
    assert Layout(Granularity(axis, block), shape).scale_shape == reduced.shape
    assert Layout(PER_TENSOR, shape).scale_shape == np.sum(x).shape


@pytest.mark.parametrize(
    ("axis", "rank", "words"),
    [
        (2, 2, "axis 2 is outside a tensor of rank 2; give one of [-2, 1]"),
        (-3, 2, "axis -3 is outside a tensor of rank 2; give one of [-2, 1]"),
        (0, 0, "axis 0 is given for a scalar, which has no axes; use per-tensor"),
    ],
)
def test_axis_outside(axis, rank, words):
    """An axis the tensor lacks is refused with those it has."""
    for granularity in (Granularity(axis), Granularity(axis, 2)):
        with pytest.raises(SpecError) as caught:
            _ = Layout(granularity, (4,) * rank).scale_shape
        assert str(caught.value) == words


@given(SHAPES, st.data())
def test_one_parameter_for_each_block(shape, data):
    """N-D blocks: as many parameters as NumPy cuts pieces along every axis; -1 is one piece."""
    sizes = [data.draw(st.sampled_from([-1, 1, 2, 3, 10])) for _ in shape]
    x = np.zeros([max(n, 1) for n in shape])
    cut = x
    for axis, size in enumerate(sizes):
        cut = np.add.reduceat(cut, range(0, cut.shape[axis], size if size > 0 else cut.shape[axis]), axis)
    assert Layout(Granularity(block_shape=tuple(sizes)), x.shape).scale_shape == cut.shape


def test_block_shape_of_another_rank():
    """One size for each dimension: both are named."""
    with pytest.raises(SpecError) as caught:
        _ = Layout(Granularity(block_shape=(2, 2)), (3, 4, 5)).scale_shape
    assert str(caught.value) == "block_shape [2, 2] must have one size for each dimension of [3, 4, 5]"

"""MergeStatistics: a state that grows by what Observe sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibration.statistics import BIN_COUNT, TensorStatistics, empty_state


def assert_same(found: TensorStatistics, expected: TensorStatistics) -> None:
    """Equal numbers and histograms."""
    for name in ("rmin", "rmax", "elements", "nans", "infinities", "zeros"):
        assert getattr(found, name) == getattr(expected, name), name
    np.testing.assert_array_equal(found.bins, expected.bins)
    np.testing.assert_array_equal(found.counts, expected.counts)


@settings(max_examples=60)
@given(parts=st.lists(hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32)), max_size=4))
def test_state_is_the_statistics_of_all_parts(ops: Any, parts: list[np.ndarray]) -> None:
    """Whatever came in whatever parts: the state says what NumPy says of all of it."""
    state = empty_state()
    for part in parts:
        state = ops.merge_statistics(part, state)
    everything = np.concatenate([np.zeros(0, np.float32), *parts])
    assert_same(TensorStatistics.from_state(state), TensorStatistics.from_array(everything))


def test_state_without_a_histogram(ops: Any) -> None:
    """A state of 8 numbers keeps range and counts, and no bins."""
    x = np.array([1, -2, 0, np.nan, np.inf], np.float32)
    found = TensorStatistics.from_state(ops.merge_statistics(x, empty_state(histogram=False)))
    assert (found.rmin, found.rmax, found.elements, found.nans, found.infinities) == (-2, 1, 5, 1, 1)
    assert found.bins.size == 0


def test_the_state_given_is_not_changed(ops: Any) -> None:
    """The operator is a function: the caller's array stays what it was."""
    state = empty_state()
    ops.merge_statistics(np.ones(5, np.float32), state)
    np.testing.assert_array_equal(state, empty_state())


def test_state_of_nothing() -> None:
    """The empty state is the identity of merging."""
    assert_same(TensorStatistics.from_state(empty_state()), TensorStatistics())


def test_float16_counts_as_its_float32_values(ops: Any) -> None:
    """16-bit floats are counted by the value that they have."""
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float16)
    state = ops.merge_statistics(x, empty_state())
    assert_same(TensorStatistics.from_state(state), TensorStatistics.from_array(x.astype(np.float32)))


@pytest.mark.parametrize("shape", [(9,), (BIN_COUNT,), (1, 8), ()])
def test_states_of_other_shapes_are_refused(ops: Any, shape: tuple[int, ...]) -> None:
    """A state that is none is named with the shapes that there are."""
    with pytest.raises(Exception, match=r"MergeStatistics: state must have shape \[8\] or"):
        ops.merge_statistics(np.ones(3, np.float32), np.zeros(shape, np.int64))

"""Samples that stand apart by their magnitude, whatever the order of the data and its batches."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from builders import conv_relu
from hypothesis import strategies as st

from onnxfq.data import InputSpec
from onnxfq.data.apart import LEAST_OCTAVES, MOST_SHARE, Extents
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.replay import KeptFeeds
from onnxfq.stages.options import open_feeds

SPECS = (InputSpec("x", np.dtype(np.float32), (None, 4)), InputSpec("n", np.dtype(np.int64), (None,)))


def find(amax: np.ndarray, batch: int = 1) -> list[int]:
    """Return the places of samples that stand apart; each sample has one of these magnitudes."""
    extents = Extents(SPECS)
    for first in range(0, len(amax), batch):
        part = np.asarray(amax[first : first + batch], np.float32)
        x = np.outer(part, [0.5, -1, 0.1, 0.3]).astype(np.float32)
        extents.add({"x": x, "n": np.arange(len(part)) * 10**9})
    return [one.place for one in extents.find_apart()]


@hypothesis.given(
    count=st.integers(3, 90), factor=st.floats(5, 1e6), at=st.integers(0, 89), batch=st.integers(1, 9)
)
def test_one_large_sample_stands_apart(count: int, factor: float, at: int, batch: int) -> None:
    """Among samples of one size, in any place and batches; whole numbers have no magnitude."""
    amax = np.random.default_rng(count).uniform(0.9, 1.0, count)
    assert find(amax, batch) == []
    amax[at % count] *= factor
    assert find(amax, batch) == [at % count]


@pytest.mark.parametrize("count", [16, 32, 500])
def test_a_kind_of_sample_does_not(count: int) -> None:
    """More than one in MOST_SHARE are a kind of their own, and so is what a wide spread reaches."""
    amax = np.linspace(0.9, 1.0, count)
    amax[: max(1, count // MOST_SHARE)] *= 100
    assert find(amax) == list(range(max(1, count // MOST_SHARE)))
    amax[count // 2] *= 100
    assert find(amax) == []
    loud = np.exp2(np.linspace(-8, 0, count))
    assert find(np.append(loud, 2**LEAST_OCTAVES * 1.1)) == []
    assert find(np.append(loud, 2**13.0)) == [count]


def test_what_is_not_finite_or_zero_is_no_magnitude() -> None:
    """NaN and infinities are left to the checks of the data; silence stands below, not apart."""
    assert find(np.append(np.ones(20), np.inf)) == []
    assert find(np.append(np.ones(20), np.nan)) == []
    assert find(np.append(np.ones(20), 0.0)) == []


@pytest.mark.grid
@pytest.mark.parametrize("batch", [1, 8, 0])
@pytest.mark.parametrize("count", [7, 20, 300])
def test_they_are_seen(count: int, batch: int) -> None:
    """No unseen sample stands apart, whatever its digest; passes without it have all others."""
    (spec,) = input_specs(conv_relu())
    shape = [2 if size is None else size for size in (spec.shape or ())][1:]
    x = np.random.default_rng(count).uniform(-1, 1, (count, *shape)).astype(np.float32)
    places = range(0, count, max(1, count // 7))
    for place in places:
        data = x.copy()
        data[place] *= 100
        kept = KeptFeeds(open_feeds(conv_relu(), {spec.name: data}, batch))
        observed = np.concatenate([feed[spec.name] for feed in kept.rest()])
        assert [one.place for one in kept.apart] == [place]
        assert np.abs(observed).max() > 50 > np.abs([feed[spec.name] for feed in kept.compared]).max()
        others = kept.without_apart()
        for feeds in (others, others.rest(), others.again(), others.select(count)):
            assert max(np.abs(feed[spec.name]).max() for feed in feeds) <= 1
        rows = sum(len(feed[spec.name]) for feed in others.rest()) + len(others.unseen)
        assert rows == count - 1 and [*map(id, others.unseen)] == [*map(id, kept.unseen)]
        (apart,) = kept.read_apart()
        np.testing.assert_array_equal(apart[spec.name][0], data[place])

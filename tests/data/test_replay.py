"""Samples that a pass keeps, whatever the order of the data and its batches, and passes without them."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from builders import conv_relu
from hypothesis import strategies as st

from onnxfq.data import InputSpec, sample_digest
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.replay import KeptFeeds
from onnxfq.data.selection import Selection, count_bytes
from onnxfq.stages.options import open_feeds

SPECS = (InputSpec("x", np.dtype(np.float32), (None, None)),)


CHECK_SAMPLES, MOST_UNSEEN = 128, 64


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so few samples be kept that the tests run soon."""
    monkeypatch.setattr("onnxfq.data.replay.CHECK_SAMPLES", CHECK_SAMPLES)
    monkeypatch.setattr("onnxfq.data.replay.MOST_UNSEEN", MOST_UNSEEN)


def samples(count: int) -> np.ndarray:
    """Samples that hold their number."""
    shape = [dim.dim_value for dim in conv_relu().graph.input[0].type.tensor_type.shape.dim[1:]]
    return np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None, None], (count, *shape)).copy()


def numbers(feeds) -> list[int]:
    """Numbers of the samples of some feeds."""
    (name,) = (spec.name for spec in input_specs(conv_relu()))
    return [int(row.flat[0]) for feed in feeds for row in feed[name]]


@pytest.mark.parametrize("count", [1, 5, CHECK_SAMPLES, 3 * CHECK_SAMPLES])
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("batch", [1, 8, 0])
def test_a_pass_without_the_first_compared_samples(count: int, repeats: bool, batch: int) -> None:
    """It has all other samples of data that can be read again, and all other kept ones of other data."""
    (name,) = (spec.name for spec in input_specs(conv_relu()))
    x = samples(count)
    data = {name: x} if repeats else ({name: one[None]} for one in x)
    kept = KeptFeeds(open_feeds(conv_relu(), data, batch))
    assert numbers(kept) == list(range(count))
    assert len(kept.feeds) == min(count, CHECK_SAMPLES)
    left_out = numbers(kept.feeds[:4])
    rest = range(count) if repeats else numbers(kept.feeds)
    for _ in range(2):
        assert numbers(kept.again(kept.feeds[:4])) == [number for number in rest if number not in left_out]


def test_samples_before_the_pass() -> None:
    """Data that can be read again is read through for them; of other data its beginning is read ahead."""
    (name,) = (spec.name for spec in input_specs(conv_relu()))
    x = samples(3 * CHECK_SAMPLES)
    kept = KeptFeeds(open_feeds(conv_relu(), {name: x}, 16))
    found = numbers(kept.select(20))
    ordered = sorted(range(len(x)), key=lambda n: sample_digest({name: x[n : n + 1]}))
    assert numbers(kept.unseen) == ordered[:MOST_UNSEEN] and found == ordered[MOST_UNSEEN:][:20]
    assert numbers(kept) == list(range(len(x))) and numbers(kept.feeds) == ordered[:CHECK_SAMPLES]
    once = KeptFeeds(open_feeds(conv_relu(), ({name: one[None]} for one in x)))
    assert sorted(numbers(once.select(20))) == list(range(20)) and numbers(once) == list(range(len(x)))


@pytest.mark.parametrize("batch", [1, 8, 0])
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("before", [True, False], ids=["after a pass", "in the first pass"])
@pytest.mark.parametrize("count", [7, 8, 40, 3 * CHECK_SAMPLES])
def test_the_unseen_samples_are_left_out(count: int, before: bool, repeats: bool, batch: int) -> None:
    """The rest and the unseen samples are the data, each sample as often as it comes, duplicates together."""
    (name,) = (spec.name for spec in input_specs(conv_relu()))
    x = np.concatenate([samples(count), samples(count)[: count // 2]])
    kept = KeptFeeds(
        open_feeds(conv_relu(), {name: x} if repeats else ({name: one[None]} for one in x), batch)
    )
    if before and repeats:
        kept.select(1)
    rest = numbers(kept.rest())
    held_out = numbers(kept.held_out())
    assert sorted(rest + held_out) == sorted([*range(count), *range(count // 2)])
    assert not set(rest) & set(held_out) and set(held_out) == set(numbers(kept.unseen))
    assert len(kept.unseen) == min(max(len(x) // 4, 16), MOST_UNSEEN, count // 2)
    if repeats:
        assert sorted(numbers(kept.rest())) == sorted(rest) == sorted(numbers(kept.again()))


@hypothesis.given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    room=st.integers(1, 120),
    most=st.integers(1, 8),
    random=st.randoms(use_true_random=False),
)
def test_a_selection_is_the_longest_beginning_that_fits(sizes, room, most, random) -> None:
    """In any order, with samples that repeat: the samples of least digest before the first without room."""
    rows = [{"x": np.full((1, size), number % 20, np.float32)} for number, size in enumerate(sizes)]
    ranked = sorted({sample_digest(row): row for row in rows}.items())
    wanted, used = [ranked[0][0]], count_bytes(ranked[0][1])
    for digest, row in ranked[1:most]:
        used += count_bytes(row)
        if used > room:
            break
        wanted.append(digest)
    for _ in range(3):
        random.shuffle(rows)
        selection = Selection(SPECS, room, most, count_bytes)
        for row in rows:
            selection.add(row)
        assert selection.digests == wanted == [sample_digest(one) for one in selection.samples]

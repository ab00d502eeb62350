"""Batches: in which sizes samples come does not matter, and none is lost, doubled or moved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfq.data import DataOptions, Feed, Feeds, InputSpec, sample_count
from onnxfq.errors import DataError

IDS = InputSpec("ids", np.dtype(np.int64), (None, None))
MASK = InputSpec("mask", np.dtype(np.float32), (None, None))
FLAG = InputSpec("flag", np.dtype(np.bool_), ())
ALL = (IDS, MASK, FLAG)


def sample(number: int, length: int, flag: bool) -> Feed:
    """One sample whose values tell its number."""
    return {
        "ids": np.full((1, length), number),
        "mask": np.full((1, length), number / 2, np.float32),
        "flag": np.asarray(flag),
    }


def joined(parts: list[Feed]) -> Feed:
    """Samples of one length and flag as one feed."""
    return {
        "ids": np.concatenate([part["ids"] for part in parts]),
        "mask": np.concatenate([part["mask"] for part in parts]),
        "flag": parts[0]["flag"],
    }


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[Feed], list[Feed]]:
    """Samples of few lengths and flags, and the same ones split into feeds anyhow."""
    kinds = draw(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=25))
    single = [sample(number, length, flag) for number, (length, flag) in enumerate(kinds)]
    feeds, group = [], [single[0]]
    for number in range(1, len(single)):
        if kinds[number] != kinds[number - 1] or draw(st.booleans()):
            feeds.append(joined(group))
            group = []
        group.append(single[number])
    return single, [*feeds, joined(group)]


def same(one: list[Feed], other: list[Feed]) -> None:
    """Compare feeds to the bit."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], strict=True)


@given(splits(), st.integers(1, 9), st.booleans())
def test_any_split_gives_the_same_feeds(
    both: tuple[list[Feed], list[Feed]], batch: int, stream: bool
) -> None:
    """Samples one by one and in feeds of any sizes give the same feeds, from a list or a stream."""
    single, split = both
    feeds = Feeds((lambda: iter(split)) if stream else split, ALL, batch)
    got = list(feeds)
    same(list(Feeds(single, ALL, batch)), got)
    np.testing.assert_array_equal(
        np.concatenate([feed["ids"][:, 0] for feed in got]), np.arange(len(single)), "every sample once"
    )
    for feed, after in zip(got, [*got[1:], None], strict=True):
        assert 1 <= sample_count(feed, ALL) <= batch
        changes = after is None or (
            feed["ids"].shape[1] != after["ids"].shape[1] or bool(feed["flag"]) != bool(after["flag"])
        )
        assert changes or sample_count(feed, ALL) == batch, "short only where the kind changes"


@given(splits(), st.integers(1, 9))
def test_digest_and_limit_do_not_hang_on_batches(both: tuple[list[Feed], list[Feed]], batch: int) -> None:
    """The digest belongs to the samples, in any order and batch; a limit takes the first ones."""
    single, split = both
    whole, turned = Feeds(split, ALL, batch), Feeds(single[::-1], ALL, 0)
    list(whole), list(turned)
    assert whole.digest == turned.digest and whole.digest is not None
    assert whole.digest.samples == len(single)
    limit = max(1, len(single) // 2)
    some = Feeds(split, ALL, batch, DataOptions(limit=limit))
    same(list(some), list(Feeds(single[:limit], ALL, batch)))
    assert some.total == limit


def test_batch_0_leaves_feeds_as_they_are() -> None:
    """With batch 0 a feed is what the caller made one, and an array with all samples is one."""
    feeds = [joined([sample(n, 2, True) for n in range(size)]) for size in (3, 1, 20)]
    same(list(Feeds(feeds, ALL, 0)), feeds)
    x = np.zeros((20, 2))
    (feed,) = Feeds({"ids": x.astype(int), "mask": x, "flag": np.asarray(True)}, ALL, 0)
    assert feed["ids"].shape == (20, 2)
    with pytest.raises(DataError, match="batch is -1; give at least 1, or 0 to keep the sizes of the data"):
        Feeds(feeds, ALL, -1)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param((IDS, InputSpec("mask", np.dtype(np.float32), (1, None))), id="one batch is fixed"),
        pytest.param((InputSpec("ids", np.dtype(np.int64), None), MASK), id="one shape is unknown"),
    ],
)
def test_what_counts_no_samples_is_as_given(inputs: tuple[InputSpec, ...]) -> None:
    """If axis 0 is not known to count samples in every input, feeds are not cut or joined."""
    feeds = [{"ids": np.zeros((n, 2), np.int64), "mask": np.zeros((1, 3), np.float32)} for n in (1, 3, 9)]
    same(list(Feeds(feeds, inputs)), feeds)
    assert [sample_count(feed, inputs) for feed in feeds] == [1, 1, 1]


def test_unequal_counts_are_one_sample() -> None:
    """A feed whose inputs differ in axis 0, as boxes and images do, is not taken apart."""
    feeds = [{"ids": np.zeros((n, 2), np.int64), "mask": np.zeros((2, 3), np.float32)} for n in (2, 3, 2)]
    got = list(Feeds(feeds, (IDS, MASK), 8))
    same(got, feeds)
    assert [sample_count(feed, (IDS, MASK)) for feed in got] == [2, 1, 2]


def test_limit_reads_no_further() -> None:
    """Samples behind the limit are not asked for."""
    taken = []

    def stream():
        for number in range(100):
            taken.append(number)
            yield sample(number, 2, True)

    assert len(list(Feeds(stream(), ALL, 4, DataOptions(limit=10)))) == 3
    assert taken == list(range(10))


def test_feeds_without_samples_are_left_out() -> None:
    """A feed of no samples adds none; only such feeds are not data."""
    empty = {"ids": np.zeros((0, 2), np.int64), "mask": np.zeros((0, 2), np.float32), "flag": np.True_}
    (feed,) = Feeds([empty, sample(0, 2, True), empty], ALL, 0)
    assert sample_count(feed, ALL) == 1
    with pytest.raises(DataError, match="holds no samples"):
        list(Feeds([empty], ALL))

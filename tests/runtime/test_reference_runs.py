"""Outputs of the float model that several comparisons share."""

from __future__ import annotations

from typing import Any

import pytest
from builders import conv_relu, feed_for

from onnxfq.data import Feed
from onnxfq.execution import reference_runs
from onnxfq.execution.reference_runs import ReferenceRuns
from onnxfq.execution.sides import LEAST_FEEDS
from onnxfq.graph.patterns.logits import NOTHING_KNOWN
from onnxfq.runtime.session import Session

FEEDS = [feed_for(conv_relu(), seed) for seed in range(LEAST_FEEDS + 3)]


@pytest.mark.parametrize("count", [1, LEAST_FEEDS, LEAST_FEEDS + 3])
def test_they_are_those_of_a_session(count: int) -> None:
    """For the feeds that are kept, and for those that follow; a second comparison gets them again."""
    session = Session(conv_relu(), 1)
    with ReferenceRuns(conv_relu(), NOTHING_KNOWN, 2, "cpu") as runs:
        runs.start(FEEDS[:count])
        for _ in range(2):
            found = runs.over(FEEDS[:count])
            assert found is not None
            for feed, outputs in zip(FEEDS[:count], found, strict=True):
                assert [a.tobytes() for a in outputs] == [a.tobytes() for a in session.run(feed)]


def _read_bytes(feed: Feed) -> bytes:
    return b"".join(array.tobytes() for array in feed.values())


@pytest.fixture
def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list of the feeds that sessions ran on, as bytes: each is copied."""
    ran: list[bytes] = []
    run = Session.run

    def noted(self: Session, feed: Any, outputs: Any = None) -> Any:
        ran.append(_read_bytes(feed))
        return run(self, feed, outputs)

    monkeypatch.setattr(Session, "run", noted)
    return ran


@pytest.mark.parametrize("threads", [1, 2])
def test_each_feed_runs_once(threads: int, runs_of: list[bytes]) -> None:
    """However many comparisons ask, in any order; on one thread nothing runs before it is asked for."""
    with ReferenceRuns(conv_relu(), NOTHING_KNOWN, threads, "cpu") as runs:
        runs.start(FEEDS)
        assert threads > 1 or not runs_of
        for asked in (FEEDS[:2], FEEDS, FEEDS[::-1]):
            assert len(list(runs.over(asked) or ())) == len(asked)
    assert sorted(runs_of) == sorted(map(_read_bytes, FEEDS))


def test_large_outputs_are_not_kept(monkeypatch: pytest.MonkeyPatch, runs_of: list[bytes]) -> None:
    """Then every comparison runs the model again, and has the same outputs."""
    monkeypatch.setattr(reference_runs, "KEPT_BYTES", 1)
    with ReferenceRuns(conv_relu(), NOTHING_KNOWN, 1, "cpu") as runs:
        once, twice = (list(runs.over(FEEDS) or ()) for _ in range(2))
    assert [a.tobytes() for (a,) in once] == [a.tobytes() for (a,) in twice]
    assert len(runs_of) == 2 * len(FEEDS)


def test_it_ends_with_its_block(runs_of: list[bytes]) -> None:
    """An error of another stage does not wait for all feeds, and nothing is kept."""
    with pytest.raises(KeyboardInterrupt), ReferenceRuns(conv_relu(), NOTHING_KNOWN, 2, "cpu") as runs:
        runs.start(FEEDS)
        raise KeyboardInterrupt
    before = len(runs_of)
    assert len(list(runs.over(FEEDS[:1]) or ())) == len(runs_of) - before == 1

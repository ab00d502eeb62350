"""Outputs of the float model that several comparisons share."""

from __future__ import annotations

import pytest
from builders import conv_relu, feed_for

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


def test_nothing_is_kept_where_it_would_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread nothing runs in the background; other feeds and large outputs run when compared."""
    with ReferenceRuns(conv_relu(), NOTHING_KNOWN, 1, "cpu") as runs:
        runs.start(FEEDS)
        assert runs.over(FEEDS) is None
    with ReferenceRuns(conv_relu(), NOTHING_KNOWN, 2, "cpu") as runs:
        runs.start(FEEDS)
        assert runs.over(FEEDS[::-1]) is None
        runs.start(FEEDS[::-1])
        assert runs.over(FEEDS[::-1]) is not None
    monkeypatch.setattr(reference_runs, "KEPT_BYTES", 1)
    with ReferenceRuns(conv_relu(), NOTHING_KNOWN, 2, "cpu") as runs:
        runs.start(FEEDS)
        assert runs.over(FEEDS) is None


def test_it_ends_with_its_block() -> None:
    """An error of another stage does not wait for all feeds."""
    with pytest.raises(KeyboardInterrupt), ReferenceRuns(conv_relu(), NOTHING_KNOWN, 2, "cpu") as runs:
        runs.start(FEEDS)
        raise KeyboardInterrupt
    assert runs.over(FEEDS) is None

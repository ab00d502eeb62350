"""Runs of several feeds at a time: their order, their number, and how it is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnxfq.data import Feed
from onnxfq.runtime import parallel_runs
from onnxfq.runtime.parallel_runs import ParallelRuns

FEEDS = [{"x": np.full(3, number, np.float32)} for number in range(20)]


class Watched:
    """A session that counts how many runs it has at a time; the first of each pair takes longer."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.now, self.most = 0, 0
        self.lock = threading.Lock()

    def run(self, feed: Feed) -> list[Any]:
        """Return the feed's own number."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.004 if feed["x"][0] % 2 else 0.012)
        with self.lock:
            self.now -= 1
        return [feed["x"][0]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """The sessions that were made; a run of one seems to take 100 bytes."""
    sessions: list[Watched] = []
    taken = iter(range(0, 10**6, 100))
    monkeypatch.setattr(parallel_runs, "_resident", lambda: next(taken))
    return sessions


def runs(made: list[Watched], cores: int, room: int, needed: int | None) -> ParallelRuns[list[Any]]:
    """Runs on watched sessions."""

    def make(threads: int) -> Any:
        made.append(Watched(threads))
        return made[-1].run

    return ParallelRuns(make, cores, room, lambda feed: needed)


@pytest.mark.parametrize(
    ("cores", "room", "needed", "at_a_time"),
    [
        (4, 300, 100, 4),  # known beforehand: three more than the first fit
        (4, 299, 100, 3),  # known not to fit: one runs alone, two more fit
        (4, 300, None, 4),
        (4, 100, None, 2),
        (4, 0, None, 1),
        (1, 0, 10**9, 1),
    ],
)
def test_as_many_as_fit(
    cores: int, room: int, needed: int | None, at_a_time: int, made: list[Watched]
) -> None:
    """No more at a time than there is room for, and no fewer; results are in order."""
    running = runs(made, cores, room, needed)
    got = list(running.run(iter(FEEDS)))
    assert [result[0] for result in got] == list(range(20))
    assert made[-1].most == at_a_time
    assert made[-1].threads == cores // at_a_time
    sessions = len(made)
    assert len(list(running.run(FEEDS[:3]))) == 3
    assert len(made) == sessions  # kept
    running.close()


def test_feeds_are_read_as_they_are_needed(made: list[Watched]) -> None:
    """At most one feed more than run at a time is held."""
    read = 0

    def source() -> Iterator[Feed]:
        nonlocal read
        for feed in FEEDS:
            read += 1
            yield feed

    running = runs(made, 2, 10**6, 1)
    for done, _ in enumerate(running.run(source())):
        assert read <= done + 4
    running.close()

"""Runs of several feeds at a time, each on one thread: what a feed gives hangs on no neighbour."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from onnxfq.data import Feed, sample_digest
from onnxfq.runtime.session import Session

Result = tuple[list[NDArray[Any]], int]
"""The outputs and the digest of a feed."""


class ParallelRuns:
    """Runs feeds on one session, each on one thread, as many at a time as cores and memory allow."""

    def __init__(
        self,
        make_session: Callable[[int], Session],
        outputs: list[str],
        threads: int,
        room: int,
        needed: Callable[[Feed], int | None],
    ) -> None:
        """Make nothing yet: the session is made by the first run and kept.

        make_session: called with the number of threads of a run. outputs: fetched from each run; without any
        nothing is run. threads: cores to use, 0 for all. room: bytes that all feeds but one may take.
        needed: tells how many bytes a feed takes, where that is known beforehand.
        """
        self._make_session = make_session
        self._outputs = outputs
        self._cores = threads or _cores()
        self._room = room
        self._needed = needed
        self._session: Session | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._at_a_time = 1

    def close(self) -> None:
        """Stop the threads and give back what the session takes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._session = None

    def run(self, feeds: Iterable[Feed]) -> Iterator[Result]:
        """Yield what each feed gave, in order."""
        flying: deque[Future[Result]] = deque()
        for feed in feeds:
            if not self._outputs:
                yield [], sample_digest(feed)
                continue
            if self._pool is None:
                first = self._start(feed)
                self._pool = ThreadPoolExecutor(self._at_a_time)
                if first is not None:
                    yield first
                    continue
            # One more than run waits for its turn: while a result is read, all cores are busy.
            while len(flying) > self._at_a_time:
                yield flying.popleft().result()
            flying.append(self._pool.submit(self._run, feed))
        while flying:
            yield flying.popleft().result()

    def _run(self, feed: Feed) -> Result:
        assert self._session is not None
        return self._session.run(feed, self._outputs), sample_digest(feed)

    def _start(self, feed: Feed) -> Result | None:
        """Make the session and find out how many feeds there may be at a time.

        Where memory for one on each core is there for sure, nothing is run. Else `feed` runs alone, and its
        result is returned: what it leaves allocated is what another one beside it will take.
        """
        self._session = self._make_session(1)
        needed = self._needed(feed)
        if needed is not None and needed * (self._cores - 1) <= self._room:
            self._at_a_time = self._cores
            return None
        before = _resident()
        result = self._run(feed)
        self._at_a_time = max(1, min(self._cores, 1 + self._room // max(_resident() - before, 1)))
        if self._cores // self._at_a_time > 1:
            # Not all cores have a feed of their own. A run gives the same bits on several threads wherever
            # that was measured (`docs/guide.md`); onnxruntime does not promise it.
            self._session = None  # the first one's memory goes before the second one takes its own
            self._session = self._make_session(self._cores // self._at_a_time)
        return result


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _resident() -> int:
    """Return the bytes of memory this process has taken, without mapped files; 0 where that is not told."""
    try:
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        pages = resident - shared
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")

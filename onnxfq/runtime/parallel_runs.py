"""Parallel runs of several feeds, each on one thread: results do not depend on other feeds."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from onnxfq.data import DataDigest, Feed
from onnxfq.runtime.session import Session

Result = tuple[list[NDArray[Any]], DataDigest]
"""Outputs and digest of a feed."""


class ParallelRuns:
    """Runs of feeds on one session, each on one thread, as many at a time as cores and memory allow."""

    def __init__(
        self,
        make_session: Callable[[int], Session],
        outputs: list[str],
        threads: int,
        room: int,
        needed: Callable[[Feed], int | None],
        digest: Callable[[Feed], DataDigest],
    ) -> None:
        """Store the settings; the first run creates the session and keeps it.

        Args:
            make_session: called with the number of threads of a run.
            outputs: fetched from each run; without any nothing is run.
            threads: cores to use, 0 for all.
            room: bytes that all feeds but one may take.
            needed: returns the bytes that a feed takes, or None if unknown.
            digest: returns the digest of a feed.
        """
        self._make_session = make_session
        self._outputs = outputs
        self._cores = threads or count_cores()
        self._room = room
        self._needed = needed
        self._digest = digest
        self._session: Session | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._at_a_time = 1

    def close(self) -> None:
        """Stop the threads and release the session."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._session = None

    def run(self, feeds: Iterable[Feed]) -> Iterator[Result]:
        """Yield the result of each feed, in order."""
        flying: deque[Future[Result]] = deque()
        for feed in feeds:
            if not self._outputs:
                yield [], self._digest(feed)
                continue
            if self._pool is None:
                first = self._start(feed)
                self._pool = ThreadPoolExecutor(self._at_a_time)
                if first is not None:
                    yield first
                    continue
            # One more feed than can run is queued, so that all cores are busy while a result is read.
            while len(flying) > self._at_a_time:
                yield flying.popleft().result()
            flying.append(self._pool.submit(self._run, feed))
        while flying:
            yield flying.popleft().result()

    def _run(self, feed: Feed) -> Result:
        assert self._session is not None
        return self._session.run(feed, self._outputs), self._digest(feed)

    def _start(self, feed: Feed) -> Result | None:
        """Create the session and determine how many feeds may run at a time.

        If memory surely suffices for one run per core, nothing is measured. Otherwise `feed` runs alone and
        its result is returned: the memory it leaves allocated is the estimate for each further run.
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
            # Fewer feeds than cores are in flight. In all measurements (`docs/guide.md`) a run gives the same
            # bits on several threads; onnxruntime does not guarantee it.
            self._session = None  # frees the memory of the first session before the second is created
            self._session = self._make_session(self._cores // self._at_a_time)
        return result


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _resident() -> int:
    """Return the resident bytes of this process without mapped files; 0 if unknown."""
    try:
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        pages = resident - shared
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")

"""Parallel runs of several feeds, each on one thread: results do not depend on other feeds."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")

GARBAGE = 64 << 20
"""Bytes that the process may grow by before freed graphs are looked for, which takes 50 ms."""


class ParallelRuns(Generic[Given, Found]):
    """Runs of feeds on shared sessions, each on one thread, as many at a time as cores and memory allow."""

    def __init__(
        self,
        open_sessions: Callable[[int], Callable[[Given], Found]],
        threads: int,
        room: int,
        needed: Callable[[Given], int | None],
    ) -> None:
        """Store the settings; the first run creates the sessions and keeps them.

        Args:
            open_sessions: called with the number of threads of a run; returns the function that runs a feed.
            threads: cores to use, 0 for all.
            room: bytes that all feeds but one may take.
            needed: returns the bytes that a feed takes, or None if unknown.
        """
        self._open_sessions = open_sessions
        self._cores = threads or count_cores()
        self._room = room
        self._needed = needed
        self._run: Callable[[Given], Found] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._at_a_time = 1

    def close(self) -> None:
        """Stop the threads and release the sessions."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._run = None
        _give_back()

    def run(self, feeds: Iterable[Given]) -> Iterator[Found]:
        """Yield the result of each feed, in order."""
        flying: deque[Future[Found]] = deque()
        for feed in feeds:
            if self._run is None:
                first = self._start(feed)
                self._pool = ThreadPoolExecutor(self._at_a_time)
                yield from first
                if first:
                    continue
            # One more feed than can run is queued, so that all cores are busy while a result is read.
            while len(flying) > self._at_a_time:
                yield flying.popleft().result()
            assert self._pool is not None and self._run is not None
            flying.append(self._pool.submit(self._run, feed))
        while flying:
            yield flying.popleft().result()

    def _start(self, feed: Given) -> list[Found]:
        """Create the sessions and determine how many feeds may run at a time.

        If memory surely suffices for one run per core, nothing is measured. Otherwise `feed` runs alone and
        its result is returned: the memory it leaves allocated is the estimate for each further run.
        """
        _give_back()
        self._run = self._open_sessions(1)
        needed = self._needed(feed)
        if needed is not None and needed * (self._cores - 1) <= self._room:
            self._at_a_time = self._cores
            return []
        before = _resident()
        result = self._run(feed)
        self._at_a_time = max(1, min(self._cores, 1 + self._room // max(_resident() - before, 1)))
        if self._cores // self._at_a_time > 1:
            # Fewer feeds than cores are in flight. In all measurements (`docs/stages.md`) a run gives the
            # same bits on several threads; onnxruntime does not guarantee it.
            self._run = None  # frees the memory of the first sessions before the second are created
            self._run = self._open_sessions(self._cores // self._at_a_time)
        return [result]


def _give_back() -> None:
    """Give the system what was freed; after growth also graphs, whose nodes hold each other."""
    _trim()
    _settled[0] = min(_settled[0], _resident())
    if _resident() > _settled[0] + GARBAGE:
        gc.collect()
        _trim()
        _settled[0] = _resident()


def _trim() -> None:
    # glibc keeps what sessions freed, several times the weights; other C libraries have no such function.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


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


_settled = [_resident()]
"""Least resident bytes since the last search."""

"""`collect_statistics`: one pass over the feeds, in fixed memory, the same bits whatever their order.

Every feed is a run of its own on one thread, and several are in flight at a time: so what a feed gives
hangs neither on its neighbours nor on the number of threads, and statistics merge exactly.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import StatisticsError
from onnxfq.feeds import Feed
from onnxfq.graph.model import Model
from onnxfq.passes.insert_observers import OBSERVE_OUTPUTS, InsertObservers, observe_output
from onnxfq.plan import Plan
from onnxfq.runtime.observed import observing_session
from onnxfq.runtime.session import Progress, Session
from onnxfq.statistics import BIN_COUNT, Statistics, TensorStatistics

log = logging.getLogger(__name__)

DEFAULT_MEMORY = 256 << 20
_HISTOGRAM_BYTES = 8 * BIN_COUNT

Nonfinite = Literal["stop", "skip"]


@dataclass(frozen=True)
class ObserveOptions:
    """How feeds are observed.

    threads: cores to use, 0 for all. memory: bytes that observing may take beyond the model's own session;
    with less of it fewer feeds are in flight and tensors are observed in several passes. nonfinite:
    whether NaN and infinities stop or are left out. feed_ranges: keep the range of every feed, for
    calibrators that hang on order. progress: called with the number of feeds done.
    """

    threads: int = 0
    memory: int = DEFAULT_MEMORY
    nonfinite: Nonfinite = "stop"
    feed_ranges: bool = False
    progress: Progress | None = None


class ObservationInterrupted(KeyboardInterrupt):
    """Observing was stopped from outside; `statistics` has the feeds that were done, in order."""

    def __init__(self, statistics: Statistics) -> None:
        """Keep what was gathered."""
        super().__init__("observing was interrupted")
        self.statistics = statistics


def collect_statistics(
    model: Model, plan: Plan, feeds: Iterable[Feed], options: ObserveOptions | None = None
) -> Statistics:
    """Run the observed model over all feeds and return what the activations of `plan` were.

    Memory does not grow with the number of feeds. Raises StatisticsError that names tensor, feed and
    counts at the first NaN or infinity, DataError for feeds that do not fit, ObservationInterrupted with
    what was gathered when interrupted.
    """
    options = options or ObserveOptions()
    plan.check_model(model.sha256)
    a_pass = max(1, options.memory // 2 // _HISTOGRAM_BYTES)
    placements = plan.activations
    groups = [placements[start : start + a_pass] for start in range(0, len(placements), a_pass)] or [()]
    if len(groups) > 1:
        log.warning(
            "%d tensors are observed in %d passes over the data, %d each, to keep to %d MB",
            len(placements),
            len(groups),
            a_pass,
            options.memory >> 20,
        )
    tensors: dict[str, TensorStatistics] = {}
    done = 0
    for number, group in enumerate(groups):
        part = plan.model_copy(update={"placements": group})
        observed = _observe(model, part, feeds, options, number)
        if number and observed.feeds != done:
            raise StatisticsError(
                f"pass {number + 1} over the data has {observed.feeds} feeds, the first had {done}; give "
                "data that can be gone through again, or more --memory"
            )
        done = observed.feeds
        tensors |= observed.tensors
    return Statistics(model.sha256, done, tensors)


def _observe(
    model: Model, plan: Plan, feeds: Iterable[Feed], options: ObserveOptions, passes_done: int
) -> Statistics:
    names = [placement.tensor for placement in plan.activations]
    sums = {name: _Accumulator(name, options) for name in names}
    outputs = [observe_output(name, output) for name in names for output in OBSERVE_OUTPUTS]
    done = 0

    def statistics() -> Statistics:
        return Statistics(model.sha256, done, {name: one.result() for name, one in sums.items()})

    with ExitStack() as stack:
        results: Iterator[list[NDArray[Any]]]
        if names:
            folder = stack.enter_context(TemporaryDirectory(prefix="onnxfq-"))
            observed = InsertObservers(plan).run(model).model.proto
            runner = _Runner(lambda threads: observing_session(observed, Path(folder), threads), options)
            results = stack.enter_context(runner).run(feeds, outputs)
        else:
            results = ([] for _ in feeds)
        try:
            for arrays in results:
                for index, name in enumerate(names):
                    sums[name].add(arrays[4 * index : 4 * index + 4], done)
                done += 1
                if options.progress is not None:
                    options.progress(done)
        except KeyboardInterrupt:
            raise ObservationInterrupted(statistics()) from None
    return statistics()


class _Runner:
    """Runs feeds on one-thread runs of one session, as many at a time as cores and memory allow."""

    def __init__(self, make_session: Any, options: ObserveOptions) -> None:
        self._make_session = make_session
        self._cores = options.threads or _cores()
        self._room = options.memory // 2
        self._pool = ThreadPoolExecutor(self._cores)

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, feeds: Iterable[Feed], outputs: list[str]) -> Iterator[list[NDArray[Any]]]:
        """Yield the outputs of every feed, in order."""
        session: Session = self._make_session(1)
        flying: deque[Future[list[NDArray[Any]]]] = deque()
        most = 0
        for feed in feeds:
            if most == 0:
                # What the first run leaves allocated is what another one beside it will take.
                before = _resident()
                first = session.run(feed, outputs)
                most = max(1, min(self._cores, 1 + self._room // max(_resident() - before, 1)))
                if most < self._cores and self._cores // most > 1:
                    session = self._make_session(self._cores // most)
                yield first
                continue
            while len(flying) >= most:
                yield flying.popleft().result()
            flying.append(self._pool.submit(session.run, feed, outputs))
        while flying:
            yield flying.popleft().result()


class _Accumulator:
    """Merges an observer's results; the histogram is held dense, so a merge touches only what came."""

    def __init__(self, tensor: str, options: ObserveOptions) -> None:
        self.tensor = tensor
        self.stop = options.nonfinite == "stop"
        self.rmin, self.rmax = float("inf"), float("-inf")
        self.counts = np.zeros(4, np.int64)
        # Zero pages take no memory before they are written.
        self.histogram = np.zeros(BIN_COUNT, np.int64)
        self.feed_ranges: list[NDArray[np.float32]] | None = [] if options.feed_ranges else None

    def add(self, results: list[NDArray[Any]], feed: int) -> None:
        limits, counts, bins, bin_counts = results
        nans, infinities = int(counts[1]), int(counts[2])
        if self.stop and (nans or infinities):
            raise StatisticsError(
                f"tensor {self.tensor!r} has {nans} NaN and {infinities} infinite values at feed {feed}; "
                "remove that sample, skip such values, or leave the tensor in float with an override"
            )
        self.rmin = min(self.rmin, float(limits[0]))
        self.rmax = max(self.rmax, float(limits[1]))
        self.counts += counts
        self.histogram[bins] += bin_counts
        if self.feed_ranges is not None:
            self.feed_ranges.append(limits)

    def result(self) -> TensorStatistics:
        bins = np.flatnonzero(self.histogram).astype(np.int32)
        totals = (int(count) for count in self.counts)
        ranges = np.asarray(self.feed_ranges or [], np.float32).reshape(-1, 2)
        return TensorStatistics(
            self.rmin, self.rmax, *totals, bins=bins, counts=self.histogram[bins], feed_ranges=ranges
        )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _resident() -> int:
    """Return the bytes of memory this process has in use; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")

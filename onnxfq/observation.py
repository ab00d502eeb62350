"""`collect_statistics`: one pass over the feeds, in fixed memory, the same bits whatever their order.

Every feed is a run of its own on one thread, and several are in flight at a time: so what a feed gives
hangs neither on its neighbours nor on the number of threads, and statistics merge exactly.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.errors import StatisticsError
from onnxfq.feeds import Feed, sample_digest
from onnxfq.feeds.options import Nonfinite
from onnxfq.graph.model import Model
from onnxfq.graph.stored import is_large
from onnxfq.graph.weightless import split_weights
from onnxfq.passes.insert_observers import OBSERVE_OUTPUTS, InsertObservers, observe_output
from onnxfq.plan import Plan
from onnxfq.runtime.observed import observing_session
from onnxfq.runtime.session import Progress, Session
from onnxfq.runtime.widened import widened
from onnxfq.statistics import BIN_COUNT, DATA_MODULUS, Statistics, TensorStatistics
from onnxfq.temporary import scratch_folder

log = logging.getLogger(__name__)

DEFAULT_MEMORY = 256 << 20
_HISTOGRAM_BYTES = 8 * BIN_COUNT

_Result = tuple[list[NDArray[Any]], int]
_MakeSession = Callable[[int], Session]


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
    model: Model,
    plan: Plan,
    feeds: Iterable[Feed],
    options: ObserveOptions | None = None,
    start: Statistics | None = None,
) -> Statistics:
    """Run the observed model over all feeds and return what the activations of `plan` were.

    start: what an interrupted run has gathered; its feeds, the first of the same data, are not run again.
    Memory does not grow with the number of feeds. Raises StatisticsError that names tensor, feed and
    counts at the first NaN or infinity, DataError for feeds that do not fit, ObservationInterrupted with
    what was gathered when interrupted in the only pass.
    """
    options = options or ObserveOptions()
    plan.check_model(model.sha256)
    passes = _passes(plan, options.memory)
    skipped = 0 if start is None else start.feeds
    tensors: dict[str, TensorStatistics] = {}
    done, data = 0, 0
    for number, part in enumerate(passes):
        with Observer(model, part, options) as observer, _interrupts() as stopped:
            source = iter(feeds) if start is None else resumed(feeds, start)
            observed = observer.run(source, skipped, stopped)
        if not observed.complete and len(passes) > 1:
            raise KeyboardInterrupt  # of one part of the tensors only: nothing to go on from
        if not observed.complete:
            raise ObservationInterrupted(observed if start is None else start.merge(observed))
        if number and (observed.feeds, observed.data) != (done, data):
            raise StatisticsError(
                f"pass {number + 1} over the data has {observed.feeds} feeds, the first had {done}"
                f"{'' if observed.feeds != done else ' others'}; give data that can be gone through "
                "again, or more memory"
            )
        done, data = observed.feeds, observed.data
        tensors |= observed.tensors
    observed = Statistics(model.sha256, done, tensors, data=data)
    return observed if start is None else replace(start, complete=True).merge(observed)


def resumed(feeds: Iterable[Feed], start: Statistics) -> Iterator[Feed]:
    """Return what comes behind the first feeds, those of `start`, as an interrupted run has left it.

    Raises StatisticsError when the first feeds are others.
    """
    source = iter(feeds)
    first = [sample_digest(feed) for feed in islice(source, start.feeds)]
    start.check_data(sum(first) % DATA_MODULUS, len(first))
    return source


def _passes(plan: Plan, memory: int) -> list[Plan]:
    """Cut `plan` so that the histograms of each part fit in half of `memory`."""
    most = max(1, memory // 2 // _HISTOGRAM_BYTES)
    placements = plan.activations
    parts = [placements[start : start + most] for start in range(0, len(placements), most)] or [()]
    if len(parts) > 1:
        log.warning(
            "%d tensors are observed in %d passes over the data, to keep to %d MB",
            len(placements),
            len(parts),
            memory >> 20,
        )
    return [plan.model_copy(update={"placements": part}) for part in parts]


class Observer:
    """The observed model of one plan, ready to run over any number of feeds."""

    def __init__(self, model: Model, plan: Plan, options: ObserveOptions) -> None:
        """Put observers into `model`; the sessions are made by the first run and kept.

        Of the weights, which the plan's maker holds already, only what onnxruntime loads comes into memory.
        """
        self._model = model
        self._options = options
        self._tensors = [placement.tensor for placement in plan.activations]
        self._outputs = [observe_output(name, out) for name in self._tensors for out in OBSERVE_OUTPUTS]
        self._files = ExitStack()
        try:
            self._session = self._large(plan) if is_large(model.proto) else self._written(plan)
        except BaseException:
            self._files.close()
            raise
        self._runner = _Runner(self._session, options)

    def __enter__(self) -> Observer:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the threads and remove what was written."""
        self._runner.close()
        self._files.close()

    def run(
        self, feeds: Iterable[Feed], first: int = 0, stopped: Callable[[], bool] = lambda: False
    ) -> Statistics:
        """Return the statistics of `feeds`, the first of which has number `first` in messages.

        stopped: asked after every feed; once it tells so, what was gathered is returned as not complete.
        Raises as `collect_statistics`.
        """
        sums = {name: _Accumulator(name, self._options) for name in self._tensors}
        done, data = 0, 0
        complete = True
        for arrays, digest in self._runner.run(feeds, self._outputs):
            for index, name in enumerate(self._tensors):
                sums[name].add(arrays[4 * index : 4 * index + 4], first + done)
            done += 1
            data = (data + digest) % DATA_MODULUS
            if self._options.progress is not None:
                self._options.progress(first + done)
            if stopped():
                complete = False
                break
        tensors = {name: one.result() for name, one in sums.items()}
        return Statistics(self._model.sha256, done, tensors, complete, data)

    def _large(self, plan: Plan) -> _MakeSession:
        """Return the maker of sessions that take large weights from where they are, uncopied."""
        observed = InsertObservers(plan).run(self._model).model.proto
        return lambda threads: Session(observed, threads)

    def _written(self, plan: Plan) -> _MakeSession:
        """Write the observed model for onnxruntime to optimise; return the maker of its sessions."""
        folder = self._files.enter_context(scratch_folder())
        light = replace(self._model, proto=split_weights(self._model.proto, folder / "weights"))
        onnx.save(widened(InsertObservers(plan).run(light).model.proto), folder / "model.onnx")
        return lambda threads: observing_session(folder / "model.onnx", folder, threads)


class _Runner:
    """Runs feeds on one session, each on one thread, as many at a time as cores and memory allow."""

    def __init__(self, make_session: Callable[[int], Session], options: ObserveOptions) -> None:
        self._make_session = make_session
        self._cores = options.threads or _cores()
        self._room = options.memory // 2
        self._pool = ThreadPoolExecutor(self._cores)
        self._session: Session | None = None
        self._most = 1

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, feeds: Iterable[Feed], outputs: list[str]) -> Iterator[_Result]:
        """Yield the outputs and the digest of every feed, in order."""
        flying: deque[Future[_Result]] = deque()
        for feed in feeds:
            if not outputs:
                yield [], sample_digest(feed)
                continue
            if self._session is None:
                yield self._first(feed, outputs), sample_digest(feed)
                continue
            while len(flying) >= self._most:
                yield flying.popleft().result()
            # A copy: the maker of feeds may fill the same memory anew while this one is in flight.
            own = {name: np.array(array) for name, array in feed.items()}
            flying.append(self._pool.submit(_run, self._session, own, outputs))
        while flying:
            yield flying.popleft().result()

    def _first(self, feed: Feed, outputs: list[str]) -> list[NDArray[Any]]:
        """Run the first feed alone: what it leaves allocated is what another one beside it will take."""
        self._session = self._make_session(1)
        before = _resident()
        result = self._session.run(feed, outputs)
        self._most = max(1, min(self._cores, 1 + self._room // max(_resident() - before, 1)))
        if self._cores // self._most > 1:
            # Not all cores have a feed of their own. A run gives the same bits on several threads wherever
            # that was measured (`docs/guide.md`); onnxruntime does not promise it.
            self._session = None  # the first one's memory goes before the second one takes its own
            self._session = self._make_session(self._cores // self._most)
        return result


def _run(session: Session, feed: Feed, outputs: list[str]) -> _Result:
    return session.run(feed, outputs), sample_digest(feed)


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


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether Ctrl-C came, which meanwhile breaks off nothing half done.

    A second Ctrl-C does what it always does. Outside of the main thread, where Python delivers none, nothing
    is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came = False
    usual = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, usual)


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

"""`collect_statistics`: one pass over the feeds, in fixed memory, the same bits whatever their order.

Every feed is a run of its own on one thread, and several are in flight at a time: so what a feed gives
hangs neither on its neighbours nor on the number of threads, and statistics merge exactly. On a GPU one
feed runs after the other, and statistics are merged there.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.accumulation import (
    ChannelRanges,
    GroupAccumulator,
    TensorAccumulator,
    refuse_nonfinite,
    usual_bytes,
)
from onnxfq.errors import DataError, DeviceMemoryError, ModelError, OnnxfqError, PlanError, StatisticsError
from onnxfq.feeds import Feed, owned, sample_digest
from onnxfq.feeds.options import Nonfinite
from onnxfq.granularity import PerTensor
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.stored import is_large
from onnxfq.graph.weightless import split_weights
from onnxfq.passes.insert_merging import InsertMerging, StateNames
from onnxfq.passes.insert_observers import (
    OBSERVE_OUTPUTS,
    InsertObservers,
    channels_output,
    observe_output,
    observed_groups,
)
from onnxfq.passes.pass_base import Pass
from onnxfq.plan import Placement, Plan
from onnxfq.runtime.choice import DeviceChoice, choose_device, fall_back
from onnxfq.runtime.gathering import Gathering
from onnxfq.runtime.observed import observing_session
from onnxfq.runtime.places import Device, placed
from onnxfq.runtime.session import Progress, Session
from onnxfq.runtime.widened import widened
from onnxfq.statistics import DATA_MODULUS, GroupStatistics, Statistics, TensorStatistics
from onnxfq.statistics.tensor import STATE_INFINITIES, STATE_NANS
from onnxfq.temporary import scratch_folder

log = logging.getLogger(__name__)

DEFAULT_MEMORY = 256 << 20

_Result = tuple[list[NDArray[Any]], int]


@dataclass(frozen=True)
class ObserveOptions:
    """How feeds are observed.

    threads: cores to use, 0 for all. memory: bytes that observing may take beyond the model's own session;
    with less of it fewer feeds are in flight and tensors are observed in several passes. nonfinite:
    whether NaN and infinities stop or are left out. feed_ranges: keep the range of every feed, for
    calibrators that hang on order. progress: called with the number of feeds done. device: "auto" is a GPU
    where one works and has room.
    """

    threads: int = 0
    memory: int = DEFAULT_MEMORY
    nonfinite: Nonfinite = "stop"
    feed_ranges: bool = False
    progress: Progress | None = None
    device: DeviceChoice = "auto"


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
    what was gathered when interrupted in the only pass; RuntimeLibraryError and DeviceMemoryError for a GPU
    that was asked for by name.
    """
    options = options or ObserveOptions()
    plan.check_model(model.sha256)
    device = choose_device(options.device)
    passes = _passes(plan, _groups(model, plan), options.memory)
    skipped = 0 if start is None else start.feeds
    tensors: dict[str, TensorStatistics] = {}
    groups: dict[str, GroupStatistics] = {}
    channels: dict[str, NDArray[np.float32]] = {}
    done, data = 0, 0
    for number, part in enumerate(passes):
        source = owned(feeds) if start is None else resumed(feeds, start)
        with _observing(device, model, part, options, source) as (observer, source), _interrupts() as stopped:
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
        groups |= observed.groups
        channels |= observed.channels
    observed = Statistics(model.sha256, done, tensors, data=data, groups=groups, channels=channels)
    return observed if start is None else replace(start, complete=True).merge(observed)


def resumed(feeds: Iterable[Feed], start: Statistics) -> Iterator[Feed]:
    """Return what comes behind the first feeds, those of `start`, as an interrupted run has left it.

    Raises StatisticsError when the first feeds are others.
    """
    source = owned(feeds)
    first = [sample_digest(feed) for feed in islice(source, start.feeds)]
    start.check_data(sum(first) % DATA_MODULUS, len(first))
    return source


_Groups = dict[str, tuple[int, ...]]
"""The shape of a scale of every tensor that is observed by groups."""


def _groups(model: Model, plan: Plan) -> _Groups:
    """Return the groups that `plan` wants. Raises PlanError where their number is open."""
    by_group = [p for p in plan.activations if p.spec.observed_granularity != PerTensor()]
    if not by_group:
        return {}
    editor = Editor(model.graph())
    shapes = {p.tensor: observed_groups(p, editor.tensor(p)) for p in by_group}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _equalized(plan: Plan) -> list[str]:
    """Return the tensors whose channels have their ranges kept."""
    return [p.tensor for p in plan.activations if p.spec.equalized]


def _passes(plan: Plan, groups: _Groups, memory: int) -> list[Plan]:
    """Cut `plan` so that the histograms of each part fit in half of `memory`, if those of a tensor do."""
    room = memory // 2
    parts: list[list[Placement]] = [[]]
    used = 0
    for placement in plan.activations:
        shape = groups.get(placement.tensor)
        size = usual_bytes(shape)
        if shape is not None and size > room:
            log.warning(
                "tensor %r has %d groups, whose histograms take about %d MB, more than observing has; "
                "larger blocks take less",
                placement.tensor,
                prod(shape),
                size >> 20,
            )
        if parts[-1] and used + size > room:
            parts.append([])
            used = 0
        parts[-1].append(placement)
        used += size
    if len(parts) > 1:
        log.warning(
            "%d tensors are observed in %d passes over the data, to keep to %d MB",
            len(plan.activations),
            len(parts),
            memory >> 20,
        )
    return [plan.model_copy(update={"placements": tuple(part)}) for part in parts]


@contextmanager
def _observing(
    device: Device, model: Model, plan: Plan, options: ObserveOptions, feeds: Iterator[Feed]
) -> Iterator[tuple[Observer, Iterator[Feed]]]:
    """Give an observer and the feeds: on the CPU if "auto" finds that the first feed fails on `device`."""
    if device == "cuda" and _groups(model, plan):
        reason = "channels and blocks of activations are observed on the CPU; use device cpu"
        device = fall_back(options.device, device, PlanError(reason))
    with observer_on(device, model, plan, options) as observer:
        fault = None
        if options.device == "auto" and isinstance(observer, MergingObserver):
            first = list(islice(feeds, 1))
            feeds = chain(first, feeds)
            fault = observer.fault_of(first)
        if fault is None:
            yield observer, feeds
            return
    with observer_on(fall_back(options.device, device, fault), model, plan, options) as observer:
        yield observer, feeds


def observer_on(device: Device, model: Model, plan: Plan, options: ObserveOptions) -> Observer:
    """Return an observer that runs on `device`, which `choose_device` has found to work.

    On the CPU, with a note, where channels are equalized: a recipe does so without being asked, and the
    observer of channels has no kernel for GPUs.
    """
    if device != "cpu" and _equalized(plan):
        log.warning(
            "observing on the CPU, not on %s: the recipe equalizes channels, which are observed there; use "
            "equalize none to observe on the GPU",
            device,
        )
        device = "cpu"
    return (
        Observer(model, plan, options) if device == "cpu" else MergingObserver(model, plan, options, device)
    )


class Observer:
    """The observed model of one plan, ready to run over any number of feeds."""

    def __init__(self, model: Model, plan: Plan, options: ObserveOptions) -> None:
        """Put observers into `model`; the sessions are made by the first run and kept.

        Of the weights, which the plan's maker holds already, only what onnxruntime loads comes into memory.
        """
        self._model = model
        self._options = options
        self._placements = plan.activations
        self._tensors = [placement.tensor for placement in plan.activations]
        self._groups = _groups(model, plan)
        self._equalized = _equalized(plan)
        self._outputs = [observe_output(name, out) for name in self._tensors for out in OBSERVE_OUTPUTS]
        self._outputs += [channels_output(name) for name in self._equalized]
        self._files = ExitStack()
        try:
            self._observed: onnx.ModelProto | Path
            self._observed = self._large(plan) if is_large(model.proto) else self._written(plan)
        except BaseException:
            self._files.close()
            raise
        self._runner = _Runner(self._session, options)

    def _inserting(self, plan: Plan) -> Pass:
        return InsertObservers(plan)

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

        Several feeds are in flight at a time: nobody may fill their arrays anew, see `feeds.owned`.
        stopped: asked after every feed; once it tells so, what was gathered is returned as not complete.
        Raises as `collect_statistics`.
        """
        sums = [self._accumulator(placement) for placement in self._placements]
        ranges = {name: ChannelRanges() for name in self._equalized}
        done, data = 0, 0
        complete = True
        for arrays, digest in self._runner.run(feeds, self._outputs):
            for index, one in enumerate(sums):
                one.add(arrays[4 * index : 4 * index + 4], first + done)
            for of_channels, limits in zip(ranges.values(), arrays[4 * len(sums) :], strict=True):
                of_channels.add(limits)
            done += 1
            data = (data + digest) % DATA_MODULUS
            if self._options.progress is not None:
                self._options.progress(first + done)
            if stopped():
                complete = False
                break
        tensors: dict[str, TensorStatistics] = {}
        groups: dict[str, GroupStatistics] = {}
        for name in self._tensors:
            found = sums.pop(0).result()  # and its memory goes
            if isinstance(found, GroupStatistics):
                groups[name] = found
                found = found.whole()
            tensors[name] = found
        channels = {name: one.result() for name, one in ranges.items()}
        return Statistics(self._model.sha256, done, tensors, complete, data, groups, channels)

    def _accumulator(self, placement: Placement) -> TensorAccumulator | GroupAccumulator:
        stop, feed_ranges = self._options.nonfinite == "stop", self._options.feed_ranges
        shape = self._groups.get(placement.tensor)
        if shape is None:
            return TensorAccumulator(placement.tensor, stop, feed_ranges)
        granularity = placement.spec.observed_granularity
        return GroupAccumulator(placement.tensor, granularity, shape, stop, feed_ranges)

    def _large(self, plan: Plan) -> onnx.ModelProto:
        """Return the observed model for sessions that take large weights from where they are."""
        return self._inserting(plan).run(self._model).model.proto

    def _written(self, plan: Plan) -> Path:
        """Write the observed model for onnxruntime to optimise; return its path."""
        folder = self._files.enter_context(scratch_folder())
        light = replace(self._model, proto=split_weights(self._model.proto, folder / "weights"))
        onnx.save(widened(self._inserting(plan).run(light).model.proto), folder / "model.onnx")
        return folder / "model.onnx"

    def _session(self, threads: int) -> Session:
        if isinstance(self._observed, Path):
            return observing_session(self._observed, self._observed.parent, threads)
        return Session(self._observed, threads)


class MergingObserver(Observer):
    """The same with statistics that are merged by the model itself, in the memory of `device`.

    Made for GPUs; on a CPU it gives the same statistics, slower, for its tensors lose their layout.
    """

    def __init__(self, model: Model, plan: Plan, options: ObserveOptions, device: Device) -> None:
        """As an Observer; the session is made by the first run and kept."""
        super().__init__(model, plan, options)
        self._device = device
        self._names = [StateNames.of(tensor) for tensor in self._tensors]
        self._merging: Session | None = None

    def _inserting(self, plan: Plan) -> Pass:
        return InsertMerging(plan, self._options.feed_ranges)

    def run(
        self, feeds: Iterable[Feed], first: int = 0, stopped: Callable[[], bool] = lambda: False
    ) -> Statistics:
        """Return the statistics of `feeds`, as an Observer does."""
        if not self._tensors:
            return super().run(feeds, first, stopped)
        done, data, complete = 0, 0, True
        ranges: list[NDArray[np.float32]] = []
        with self._gathering() as gathering:
            for heads, of_feed, digest in gathering.run(feeds):
                self._check(heads, first + done)
                ranges.append(np.asarray([_limits(head) for head in of_feed], np.float32))
                done += 1
                data = (data + digest) % DATA_MODULUS
                if self._options.progress is not None:
                    self._options.progress(first + done)
                if stopped():
                    complete = False
                    break
        found = gathering.statistics()
        if ranges and self._options.feed_ranges:
            kept = np.stack(ranges, axis=1)  # [tensors, feeds, 2]
            found = [replace(one, feed_ranges=rows) for one, rows in zip(found, kept, strict=True)]
        tensors = dict(zip(self._tensors, found, strict=True))
        return Statistics(self._model.sha256, done, tensors, complete, data)

    def fault_of(self, feeds: Sequence[Feed]) -> OnnxfqError | None:
        """Run `feeds` and forget them; return what keeps one from running on the device, if anything."""
        if not self._tensors:
            return None
        try:
            with self._gathering() as gathering:
                for feed in feeds:
                    gathering.add(feed)
        except (DataError, DeviceMemoryError, ModelError) as error:
            return error
        return None

    @contextmanager
    def _gathering(self) -> Iterator[Gathering]:
        if self._merging is None:
            self._merging = self._session(self._options.threads)
        with placed(self._device) as place:
            yield Gathering(self._merging, self._names, self._options.feed_ranges, place)

    def _check(self, heads: NDArray[np.int64], feed: int) -> None:
        """Stop at the first NaN or infinity, when it shall: all earlier feeds had none."""
        if self._options.nonfinite != "stop":
            return
        for tensor, nans, infinities in zip(
            self._tensors, heads[:, STATE_NANS], heads[:, STATE_INFINITIES], strict=True
        ):
            refuse_nonfinite(tensor, int(nans), int(infinities), feed)

    def _session(self, threads: int) -> Session:
        return Session(self._observed, threads, device=self._device)


def _limits(head: NDArray[np.int64]) -> tuple[float, float]:
    one = TensorStatistics.from_state(head)
    return one.rmin, one.rmax


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
            flying.append(self._pool.submit(_run, self._session, feed, outputs))
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

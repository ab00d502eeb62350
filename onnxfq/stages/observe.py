"""`collect_statistics`: one pass over the feeds in bounded memory, independent of their order.

On a CPU every feed runs alone on one thread, several at a time: results do not depend on other feeds or on
the number of threads, and statistics merge exactly. On a GPU feeds run one after the other, and statistics
are merged there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from onnxfq.calibration.statistics import Key, Observed, Statistics, kinds_of
from onnxfq.calibration.statistics.state import empty_state
from onnxfq.data import DataDigest, Feed, copy_feeds, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import RuntimeLibraryError, StatisticsError
from onnxfq.execution.cluster import Cluster, split_shards
from onnxfq.graph.model import Model
from onnxfq.runtime.device_choice import choose_device, fall_back
from onnxfq.runtime.devices import Device, gpus
from onnxfq.runtime.session import Progress
from onnxfq.stages.observers import (
    MergingObserver,
    ObserveOptions,
    StatisticsObserver,
    observed_tensors,
    observer_on,
)
from onnxfq.support.interrupts import note_interrupts
from onnxfq.targets.target import prepare_model

log = logging.getLogger(__name__)


class ObservationInterrupted(KeyboardInterrupt):
    """Interruption of observing from outside; `statistics` covers the finished feeds, in order."""

    def __init__(self, statistics: Statistics) -> None:
        """Store the statistics gathered so far."""
        super().__init__("observing was interrupted")
        self.statistics = statistics


def collect_statistics(
    model: Model,
    plan: Plan,
    feeds: Iterable[Feed],
    options: ObserveOptions | None = None,
    start: Statistics | None = None,
    ray: str | None = None,
) -> Statistics:
    """Run the observed model over all feeds and return the statistics of the activations of `plan`.

    Memory does not grow with the number of feeds.

    Args:
        model: the float model that the plan was made for.
        plan: the activations to observe.
        feeds: the data; an iterable that can be repeated if memory requires several passes.
        options: threads, memory, device and progress.
        start: statistics of an interrupted run; its feeds, the first of the same data, are not run again.
        ray: address of a Ray cluster whose workers share the feeds, or "local" for the cores of this machine.
            The statistics are the same byte for byte.

    Every worker of a cluster needs onnxfq and the same kind of processor: onnxruntime rounds differently with
    other vector instructions. Custom-op libraries and data files of the model are read at the same absolute
    paths. Device "any" is the CPU there, because workers must not differ; with "cuda" each takes a GPU.

    Raises:
        StatisticsError: at the first NaN or infinity, with tensor, feed and counts.
        DataError: for feeds that do not fit the model.
        ObservationInterrupted: with the statistics so far, if the only pass is interrupted.
        RuntimeLibraryError: for a GPU that was requested by name and cannot be used, without ray, and for a
            cluster that fails or has no GPU.
        DeviceMemoryError: for a GPU that was requested by name and lacks memory.
    """
    with Observation(model, plan, options, ray) as observation:
        return observation.collect(feeds, start)


class Observation:
    """Passes over data for one plan: the sessions of the last pass serve the next one."""

    def __init__(
        self, model: Model, plan: Plan, options: ObserveOptions | None = None, ray: str | None = None
    ) -> None:
        """Prepare the model; the first pass opens sessions. Arguments as for `collect_statistics`."""
        plan.check_model(model.sha256)
        self._plan, self._options, self._ray = plan, options or ObserveOptions(), ray
        self._model = prepare_model(model, plan.target)
        self._tensors = observed_tensors(self._model, plan, self._options)
        self._device: Device = "cpu" if ray is not None else choose_device(self._options.device)
        self._files = ExitStack()
        self._opened: tuple[Plan, StatisticsObserver] | None = None
        _tell_large(self._tensors, self._options)

    def __enter__(self) -> Observation:
        """Return the observation."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the sessions."""
        self._files.close()

    def collect(
        self, feeds: Iterable[Feed], start: Statistics | None = None, is_told: bool = True
    ) -> Statistics:
        """Return the statistics of `feeds`, as `collect_statistics`; `is_told` announces each feed."""
        options, model = self._options, self._model
        progress = options.progress if is_told else None
        waiting = _divide(self._plan, self._tensors, self._device)
        skipped = 0 if start is None else start.feeds
        values: dict[Key, Any] = {}
        number, done, data = 0, 0, DataDigest()
        while waiting:
            part = waiting.pop(0)
            source = copy_feeds(feeds) if start is None else skip_resumed(model, feeds, start)
            with self._open(part, source) as (observer, source), note_interrupts() as stopped:
                observed = observer.run(source, skipped, stopped, options.memory // 2, progress)
            seen = {tensor for tensor, _ in observed.values}
            left = [placement for placement in part.placements if placement.tensor not in seen]
            if not observed.complete and (number or left or waiting):
                raise KeyboardInterrupt  # covers only some tensors, so that it cannot be resumed
            if not observed.complete:
                raise ObservationInterrupted(observed if start is None else start.join(observed))
            if number and (observed.feeds, observed.data) != (done, data):
                raise StatisticsError(
                    f"pass {number + 1} over the data has {observed.feeds} feeds, the first had {done}"
                    f"{'' if observed.feeds != done else ' others'}; give data that can be read several "
                    "times, or more memory"
                )
            if left:
                log.warning(
                    f"{len(left)} of {len(self._tensors)} tensors are observed in one more pass over the "
                    f"data, to keep to {options.memory / (1 << 20):g} MB"
                )
                waiting.insert(0, _with_placements(self._plan, left))
            number, done, data = number + 1, observed.feeds, observed.data
            values |= observed.values
        found = Statistics(model.sha256, done, values, data=data)
        return found if start is None else replace(start, complete=True).join(found)

    @contextmanager
    def _open(self, part: Plan, feeds: Iterator[Feed]) -> Iterator[tuple[_Observer, Iterator[Feed]]]:
        """Yield an observer of `part` and the feeds; with "any" on the CPU if the first feed fails."""
        if self._ray is not None:
            with _open_spread(self._ray, self._model, part, self._options, feeds) as opened:
                yield opened
            return
        device = self._device
        if device != "cpu":
            with self._make(device, part) as observer:
                fault = None
                if self._options.device == "any" and isinstance(observer, MergingObserver):
                    first = list(islice(feeds, 1))
                    feeds = chain(first, feeds)
                    fault = observer.fault_of(first)
                if fault is None:
                    yield observer, feeds
                    return
            device = fall_back(self._options.device, device, fault)
        if self._opened is None or self._opened[0] != part:
            self._files.close()
            self._opened = part, self._files.enter_context(self._make(device, part))
        yield self._opened[1], feeds

    def _make(self, device: Device, part: Plan) -> StatisticsObserver:
        wanted = {placement.tensor for placement in part.activations}
        tensors = [one for one in self._tensors if one.tensor in wanted]
        return observer_on(device, self._model, part, self._options, tensors)


@dataclass(frozen=True)
class _SpreadObserver:
    """An observer whose feeds are run by the workers of a cluster, a shard in each task."""

    cluster: Cluster
    kind: str
    opening: Callable[[], StatisticsObserver]

    def run(
        self,
        feeds: Iterable[Feed],
        first: int,
        stopped: Callable[[], bool],
        room: int | None,
        progress: Progress | None,
    ) -> Statistics:
        """Return the statistics of `feeds`, as `StatisticsObserver.run`."""
        total: Statistics | None = None
        shards = split_shards(feeds, first)
        for observed in self.cluster.map(self.opening, _observe_shard, shards, self.kind):
            total = observed if total is None else total.join(observed)
            if progress is not None:
                progress(first + total.feeds)
            if stopped():
                return replace(total, complete=False)
        return self.opening().run([]) if total is None else total


_Observer = StatisticsObserver | _SpreadObserver


@contextmanager
def _open_spread(
    address: str, model: Model, plan: Plan, options: ObserveOptions, feeds: Iterator[Feed]
) -> Iterator[tuple[_SpreadObserver, Iterator[Feed]]]:
    """Yield an observer on a cluster, and the feeds."""
    device: Device = "cuda" if options.device == "cuda" else "cpu"
    kind = "GPU" if device == "cuda" else "CPU"
    plain = replace(options, threads=1, progress=None, device=device)
    with Cluster(address, options.threads) as cluster:
        if not cluster.workers(kind):
            raise RuntimeLibraryError(f"the Ray cluster at {address!r} has no {kind}; use device cpu")
        opening = partial(_open_on_worker, replace(model), plan, plain)
        yield _SpreadObserver(cluster, kind, opening), feeds


def _open_on_worker(model: Model, plan: Plan, options: ObserveOptions) -> StatisticsObserver:
    return observer_on(choose_device(options.device), model, plan, options)


def _observe_shard(observer: StatisticsObserver, shard: tuple[int, list[Feed]]) -> Statistics:
    first, feeds = shard
    return observer.run(feeds, first)


def skip_resumed(model: Model, feeds: Iterable[Feed], start: Statistics) -> Iterator[Feed]:
    """Return the feeds of `model` after those that an interrupted run has covered, in any batches.

    Raises StatisticsError if the first samples differ from the samples of `start`.
    """
    source, inputs, first = copy_feeds(feeds), input_specs(model.proto), DataDigest()
    while first.samples < start.data.samples and (feed := next(source, None)) is not None:
        first += digest_feed(feed, inputs)
    start.check_data(first)
    return source


def _divide(plan: Plan, observed: list[Observed], device: Device) -> list[Plan]:
    """Return the activations of `plan` in parts whose states fit in a quarter of a GPU, all at once on a CPU.

    Statistics on a CPU have the size that their values need; the observer keeps them to the limit.
    """
    parts: list[list[Placement]] = [[]]
    # The model and the feeds need room too.
    room, used = gpus()[0].memory // 4 if device == "cuda" else 0, 0
    for placement, one in zip(plan.activations, observed, strict=True):
        size = empty_state().nbytes * one.groups if room else 0
        if parts[-1] and used + size > room:
            parts.append([])
            used = 0
        parts[-1].append(placement)
        used += size
    if len(parts) > 1:
        log.warning(
            f"{len(plan.activations)} tensors are observed in {len(parts)} passes over the data, to keep to "
            f"{2 * room / (1 << 20):g} MB of the GPU"
        )
    return [_with_placements(plan, part) for part in parts]


def _tell_large(observed: list[Observed], options: ObserveOptions) -> None:
    """Warn of tensors whose groups alone need more than the limit of observing."""
    for one in observed:
        size = sum(kind.memory(one) for kind in kinds_of(one))
        if one.shape is not None and size > options.memory // 2:
            log.warning(
                f"tensor {one.tensor!r} has {one.groups} groups, whose histograms take about {size >> 20} "
                "MB, above the limit of observing; larger blocks take less"
            )


def _with_placements(plan: Plan, placements: Iterable[Placement]) -> Plan:
    return plan.model_copy(update={"placements": tuple(placements)})

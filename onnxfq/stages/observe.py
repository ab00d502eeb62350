"""`collect_statistics`: one pass over the feeds, in fixed memory, the same bits whatever their order.

Every feed is a run of its own on one thread, and several are in flight at a time: so what a feed gives
hangs neither on its neighbours nor on the number of threads, and statistics merge exactly. On a GPU one
feed runs after the other, and statistics are merged there.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from onnxfq.calibration.statistics import Key, Observed, Statistics, kinds_of
from onnxfq.calibration.statistics.state import state_bytes
from onnxfq.data import Feed, owned, sample_digest
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import StatisticsError
from onnxfq.graph.model import Model
from onnxfq.runtime.device_choice import choose_device, fall_back
from onnxfq.runtime.device_memory import Device
from onnxfq.runtime.gpus import gpus
from onnxfq.stages.observers import (
    MergingObserver,
    ObserveOptions,
    Observer,
    observed_tensors,
    observer_on,
)
from onnxfq.support.digests import DATA_MODULUS

log = logging.getLogger(__name__)


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
    passes = _passes(plan, observed_tensors(model, plan, options), _rooms(device, options))
    skipped = 0 if start is None else start.feeds
    values: dict[Key, Any] = {}
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
        values |= observed.values
    observed = Statistics(model.sha256, done, values, data=data)
    return observed if start is None else replace(start, complete=True).merge(observed)


def resumed(feeds: Iterable[Feed], start: Statistics) -> Iterator[Feed]:
    """Return what comes behind the first feeds, those of `start`, as an interrupted run has left it.

    Raises StatisticsError when the first feeds are others.
    """
    source = owned(feeds)
    first = [sample_digest(feed) for feed in islice(source, start.feeds)]
    start.check_data(sum(first) % DATA_MODULUS, len(first))
    return source


Rooms = list[tuple[int, Callable[[Observed], int]]]
"""Of each memory that statistics are kept in: bytes that observing has, and what those of a tensor take."""


def _rooms(device: Device, options: ObserveOptions) -> Rooms:
    """Return where statistics are kept: on the GPU; in the host's memory too where it may come to that."""
    rooms: Rooms = []
    if device == "cpu" or options.device == "auto":
        rooms.append((options.memory, lambda one: sum(kind.memory(one) for kind in kinds_of(one))))
    if device == "cuda":
        rooms.append((gpus()[0].memory // 2, state_bytes))  # the model and the feeds need room too
    return rooms


def _passes(plan: Plan, observed: list[Observed], rooms: Rooms) -> list[Plan]:
    """Cut `plan` so that the statistics of each part fit in half of all `rooms`, if those of a tensor do."""
    parts: list[list[Placement]] = [[]]
    used = [0] * len(rooms)
    narrow: set[int] = set()
    for placement, one in zip(plan.activations, observed, strict=True):
        sizes = [size(one) for _, size in rooms]
        for (memory, _), size in zip(rooms, sizes, strict=True):
            if one.shape is not None and size > memory // 2:
                log.warning(
                    "tensor %r has %d groups, whose histograms take about %d MB, more than observing has; "
                    "larger blocks take less",
                    one.tensor,
                    one.groups,
                    size >> 20,
                )
        full = {memory for (memory, _), u, s in zip(rooms, used, sizes, strict=True) if u + s > memory // 2}
        if parts[-1] and full:
            parts.append([])
            used = [0] * len(rooms)
            narrow |= full
        parts[-1].append(placement)
        used = [u + s for u, s in zip(used, sizes, strict=True)]
    if len(parts) > 1:
        log.warning(
            "%d tensors are observed in %d passes over the data, to keep to %d MB",
            len(plan.activations),
            len(parts),
            min(narrow) >> 20,
        )
    return [plan.model_copy(update={"placements": tuple(part)}) for part in parts]


@contextmanager
def _observing(
    device: Device, model: Model, plan: Plan, options: ObserveOptions, feeds: Iterator[Feed]
) -> Iterator[tuple[Observer, Iterator[Feed]]]:
    """Give an observer and the feeds: on the CPU if "auto" finds that the first feed fails on `device`."""
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

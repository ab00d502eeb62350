"""Observers: a model with observers in it, that gives the statistics of any number of feeds.

On a CPU they come with every feed and are added up here; on a GPU the model itself adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.statistics import GroupStatistics, Statistics, TensorStatistics
from onnxfq.calibration.statistics.tensor import STATE_INFINITIES, STATE_NANS, state_ranges
from onnxfq.data import Feed
from onnxfq.data.options import Nonfinite
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import DataError, DeviceMemoryError, ModelError, OnnxfqError
from onnxfq.graph.edit import Editor
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.external.weightless import split_weights
from onnxfq.graph.liveness import most_alive
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.passes.base import Pass
from onnxfq.passes.observe.insert_merging import InsertMerging, StateNames
from onnxfq.passes.observe.insert_observers import (
    OBSERVE_OUTPUTS,
    InsertObservers,
    channels_output,
    observe_output,
    observed_groups,
)
from onnxfq.passes.observe.merge_channels import ChannelNames
from onnxfq.runtime.device_choice import DeviceChoice
from onnxfq.runtime.device_memory import Device, placed
from onnxfq.runtime.device_statistics import Gathering
from onnxfq.runtime.float32_emulation import widened
from onnxfq.runtime.observing_session import observing_session
from onnxfq.runtime.parallel_runs import ParallelRuns
from onnxfq.runtime.session import Progress, Session
from onnxfq.stages.accumulators import ChannelRanges, GroupAccumulator, TensorAccumulator, refuse_nonfinite
from onnxfq.support.digests import DATA_MODULUS
from onnxfq.support.temporary import room_for_scratch, scratch_folder

DEFAULT_MEMORY = 256 << 20


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


Groups = dict[str, tuple[int, ...]]
"""The shape of a scale of every tensor that is observed by groups."""


def groups_of(model: Model, plan: Plan) -> Groups:
    """Return the groups that `plan` wants. Raises PlanError where their number is open."""
    by_group = [p for p in plan.activations if p.spec.observed_granularity != PER_TENSOR]
    if not by_group:
        return {}
    editor = Editor(model.graph())
    shapes = {p.tensor: observed_groups(p, editor.tensor(p)) for p in by_group}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _equalized(plan: Plan) -> list[str]:
    """Return the tensors whose channels have their ranges kept."""
    return [p.tensor for p in plan.activations if p.spec.equalized]


def channels_of(model: Model, plan: Plan) -> dict[str, int]:
    """Return how many channels each tensor has whose channels have their ranges kept."""
    equalized = [p for p in plan.activations if p.spec.equalized]
    if not equalized:
        return {}
    editor = Editor(model.graph())
    return {p.tensor: int(editor.tensor(p).shape[p.spec.granularity.axis]) for p in equalized}


def observer_on(device: Device, model: Model, plan: Plan, options: ObserveOptions) -> Observer:
    """Return an observer that runs on `device`, which `choose_device` has found to work."""
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
        self._groups = groups_of(model, plan)
        self._equalized = _equalized(plan)
        self._files = ExitStack()
        try:
            self._observed: onnx.ModelProto | Path
            self._observed = self._large(plan) if is_large(model.proto) else self._written(plan)
        except BaseException:
            self._files.close()
            raise
        graph = model.proto.graph
        outputs = [observe_output(name, out) for name in self._tensors for out in OBSERVE_OUTPUTS]
        self._runs = ParallelRuns(
            self._session,
            [*outputs, *map(channels_output, self._equalized)],
            options.threads,
            options.memory // 2,
            lambda feed: most_alive(graph, {name: array.shape for name, array in feed.items()}),
        )

    def _inserting(self, plan: Plan) -> Pass:
        return InsertObservers(plan)

    def __enter__(self) -> Observer:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the threads and remove what was written."""
        self._runs.close()
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
        tally = _Tally(first, self._options.progress, stopped)
        for arrays, digest in self._runs.run(feeds):
            for index, one in enumerate(sums):
                one.add(arrays[4 * index : 4 * index + 4], tally.number)
            for of_channels, limits in zip(ranges.values(), arrays[4 * len(sums) :], strict=True):
                of_channels.add(limits)
            if not tally.goes_on(digest):
                break
        tensors: dict[str, TensorStatistics] = {}
        groups: dict[str, GroupStatistics] = {}
        for name in self._tensors:
            found = sums.pop(0).result()  # and its memory goes
            if isinstance(found, GroupStatistics):
                groups[name] = found
                found = found.whole()
            tensors[name] = found
        gathered = tally.statistics(self._model.sha256, tensors, groups)
        return replace(gathered, channels={name: one.result() for name, one in ranges.items()})

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
        with room_for_scratch():
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
        shapes = [self._groups.get(tensor) for tensor in self._tensors]
        self._names = [
            (StateNames.of(tensor), None if shape is None else prod(shape))
            for tensor, shape in zip(self._tensors, shapes, strict=True)
        ]
        self._channels = channels_of(model, plan)
        self._merging: Session | None = None

    def __exit__(self, *exception: object) -> None:
        """Give back what the session takes, and remove what was written."""
        super().__exit__(*exception)
        self._merging = None

    def _inserting(self, plan: Plan) -> Pass:
        return InsertMerging(plan, self._options.feed_ranges, self._options.nonfinite == "stop")

    def run(
        self, feeds: Iterable[Feed], first: int = 0, stopped: Callable[[], bool] = lambda: False
    ) -> Statistics:
        """Return the statistics of `feeds`, as an Observer does."""
        if not self._tensors:
            return super().run(feeds, first, stopped)
        tally = _Tally(first, self._options.progress, stopped)
        ranges: list[NDArray[np.float32]] = []
        with self._gathering() as gathering:
            for heads, of_feed, digest in gathering.run(feeds):
                self._check(heads, gathering.rows, tally.number)
                ranges.append(state_ranges(of_feed))
                if not tally.goes_on(digest):
                    break
            kept = np.stack(ranges) if ranges and self._options.feed_ranges else None  # [feeds, states, 2]
            tensors, groups = self._read(gathering, kept)
        gathered = tally.statistics(self._model.sha256, tensors, groups)
        channels = {name: ChannelRanges() for name in self._channels}
        for name, limits in gathering.channels().items() if gathered.feeds else ():
            channels[name].add(limits)
        return replace(gathered, channels={name: one.result() for name, one in channels.items()})

    def _read(
        self, gathering: Gathering, kept: NDArray[np.float32] | None
    ) -> tuple[dict[str, TensorStatistics], dict[str, GroupStatistics]]:
        """Return what was gathered. kept: the ranges of all states in every feed, where they are kept."""
        tensors: dict[str, TensorStatistics] = {}
        groups: dict[str, GroupStatistics] = {}
        for number, (placement, rows) in enumerate(zip(self._placements, gathering.rows, strict=True)):
            name, shape = placement.tensor, self._groups.get(placement.tensor)
            if shape is None:
                (states,) = gathering.states(number)
                found = TensorStatistics.from_state(states[0])
                tensors[name] = found if kept is None else replace(found, feed_ranges=kept[:, rows.start])
            else:
                granularity = placement.spec.observed_granularity
                of_groups = GroupStatistics.from_states(granularity, shape, gathering.states(number))
                groups[name] = of_groups if kept is None else replace(of_groups, feed_ranges=kept[:, rows])
                tensors[name] = groups[name].whole()
        return tensors, groups

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
            channels = {name: (ChannelNames.of(name), count) for name, count in self._channels.items()}
            yield Gathering(self._merging, self._names, channels, self._options.feed_ranges, place)

    def _check(self, heads: NDArray[np.int64], rows: Sequence[slice], feed: int) -> None:
        """Stop at the first NaN or infinity, when it shall: all earlier feeds had none."""
        if self._options.nonfinite != "stop":
            return
        for tensor, own in zip(self._tensors, rows, strict=True):
            nans, infinities = (int(heads[own, kind].sum()) for kind in (STATE_NANS, STATE_INFINITIES))
            refuse_nonfinite(tensor, nans, infinities, feed)

    def _session(self, threads: int) -> Session:
        return Session(self._observed, threads, device=self._device)


class _Tally:
    """The feeds of a run, counted."""

    def __init__(self, first: int, progress: Progress | None, stopped: Callable[[], bool]) -> None:
        self._first, self._progress, self._stopped = first, progress, stopped
        self._done, self._data, self._complete = 0, 0, True

    @property
    def number(self) -> int:
        """The number of the feed that comes now, for messages."""
        return self._first + self._done

    def goes_on(self, digest: int) -> bool:
        """Count a feed that has been added up; tell whether another may follow."""
        self._done += 1
        self._data = (self._data + digest) % DATA_MODULUS
        if self._progress is not None:
            self._progress(self.number)
        self._complete = not self._stopped()
        return self._complete

    def statistics(
        self,
        sha256: str,
        tensors: dict[str, TensorStatistics],
        groups: dict[str, GroupStatistics] | None = None,
    ) -> Statistics:
        """Return `tensors` and `groups` as what the counted feeds gave to the model of that hash."""
        return Statistics(sha256, self._done, tensors, self._complete, self._data, groups or {})

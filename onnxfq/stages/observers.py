"""Observers: models with observing nodes.

On a CPU the statistics of each feed are added up here; on a GPU the model itself merges them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.statistics import (
    HISTOGRAM,
    Key,
    Kind,
    Observed,
    Results,
    Statistics,
    kinds_of,
)
from onnxfq.calibration.statistics.grouped_histogram import GROUPED_HISTOGRAM
from onnxfq.calibration.statistics.ranges import refuse_nonfinite
from onnxfq.calibration.statistics.state import (
    STATE_INFINITIES,
    STATE_NANS,
    read_state,
    read_states,
    state_ranges,
)
from onnxfq.choices import DEFAULT_MEMORY as DEFAULT_MEMORY
from onnxfq.choices import DeviceChoice
from onnxfq.data import DataDigest, Feed, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.options import Nonfinite
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError, DeviceMemoryError, ModelError, OnnxfqError
from onnxfq.execution.gathering import Sum, Tally, gather
from onnxfq.graph.edit import Editor
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.external.weightless import split_weights
from onnxfq.graph.model import Model
from onnxfq.graph.segments import count_alive
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.passes.observe.insert_merging import with_merging
from onnxfq.passes.observe.insert_observers import (
    OBSERVE_OUTPUTS,
    STATE_OUTPUT,
    find_observed_shape,
    observe_output,
    with_observers,
)
from onnxfq.placement.equalization import find_channels
from onnxfq.placement.masked_scores import find_masked_scores
from onnxfq.runtime.device_statistics import Gathering
from onnxfq.runtime.devices import Device, open_place
from onnxfq.runtime.float32_emulation import widen_model
from onnxfq.runtime.observing_session import open_observing_session
from onnxfq.runtime.parallel_runs import ParallelRuns
from onnxfq.runtime.random_numbers import fix_draws
from onnxfq.runtime.segmented_session import SegmentedSession, open_in_segments
from onnxfq.runtime.session import Progress, Session
from onnxfq.support.temporary import room_for_scratch, scratch_folder


@dataclass(frozen=True)
class ObserveOptions:
    """Options of observing.

    Attributes:
        threads: cores to use, 0 for all.
        memory: bytes that observing may take in addition to the session of the model; less memory means fewer
            feeds in flight, and several passes over the data.
        nonfinite: whether NaN and infinities stop the run or are skipped.
        feed_ranges: record the range of every feed, for calibrators that depend on order.
        progress: called with the number of feeds done.
        device: "any" is a GPU if one works and has room.
    """

    threads: int = 0
    memory: int = DEFAULT_MEMORY
    nonfinite: Nonfinite = "stop"
    feed_ranges: bool = False
    progress: Progress | None = None
    device: DeviceChoice = "any"


def observed_tensors(model: Model, plan: Plan, options: ObserveOptions) -> list[Observed]:
    """Return the tensors that `plan` observes, in its order. Raises PlanError if their groups are unknown."""
    in_parts = any(p.observes_channels or p.observed_granularity != PER_TENSOR for p in plan.activations)
    editor = Editor(model.graph()) if in_parts else None  # a graph takes long to build
    masked = find_masked_scores(model.index).tensors
    found = []
    for placement in plan.activations:
        shape, channels, by_channel = None, 0, placement.observes_channels
        if editor is not None:
            tensor = find_channels(editor, placement) if by_channel else editor.tensor(placement)
            shape = find_observed_shape(placement, tensor)
            channels = int(tensor.shape[placement.spec.granularity.axis]) if by_channel else 0
        granularity = placement.observed_granularity
        stop = options.nonfinite == "stop" and placement.tensor not in masked
        found.append(Observed(placement.tensor, granularity, shape, channels, stop, options.feed_ranges))
    return found


def observer_on(
    device: Device, model: Model, plan: Plan, options: ObserveOptions, tensors: list[Observed] | None = None
) -> StatisticsObserver:
    """Return an observer that runs on `device`, which `choose_device` has tested."""
    if device == "cpu":
        return StatisticsObserver(model, plan, options, tensors)
    return MergingObserver(model, plan, options, device, tensors)


class StatisticsObserver:
    """The observed model of one plan, ready to run over any number of feeds."""

    def __init__(
        self, model: Model, plan: Plan, options: ObserveOptions, tensors: list[Observed] | None = None
    ) -> None:
        """Insert observers into `model`; the first run creates the sessions.

        Weights are loaded only by onnxruntime, because the caller already holds them. `tensors` is the result
        of `observed_tensors`, if it is known.
        """
        self._model = model
        self._options = options
        self._tensors = observed_tensors(model, plan, options) if tensors is None else tensors
        self._digest = partial(digest_feed, inputs=input_specs(model.proto))
        self._files, self._numbers = ExitStack(), count()
        self._folder: Path | None
        try:
            self._observed = self._insert_observers(plan)
        except BaseException:
            self._files.close()
            raise
        alive = partial(count_alive, model.proto.graph)
        self._runs = ParallelRuns(self._open_run, options.threads, options.memory // 2, alive)

    def _observe(self, model: Model, plan: Plan) -> Model:
        return with_observers(model, plan)

    def __enter__(self) -> StatisticsObserver:
        """Return the observer."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the threads and remove temporary files."""
        self._runs.close()
        self._files.close()

    def run(
        self,
        feeds: Iterable[Feed],
        first: int = 0,
        stopped: Callable[[], bool] = lambda: False,
        room: int | None = None,
        progress: Progress | None = None,
    ) -> Statistics:
        """Return the statistics of `feeds`.

        Several feeds are in flight at a time: nobody may overwrite their arrays, see `data.feeds`.

        Args:
            feeds: the data.
            first: number of the first feed in messages.
            stopped: asked after every feed; once it returns true, the statistics so far are returned as
                incomplete.
            room: bytes of statistics on a CPU beyond which the last tensors are left out; None for no limit.
            progress: called with the number of feeds done.

        Raises as `collect_statistics`.
        """
        tally = Tally(first, progress, stopped)
        values: dict[Key, Any] = {}
        for (name, kind), value in self._gather(feeds, tally, room).items():
            if kind == GROUPED_HISTOGRAM.name:
                values[name, HISTOGRAM.name] = value.whole()
            values[name, kind] = value
        return Statistics(self._model.sha256, tally.done, values, tally.complete, tally.data)

    def _gather(self, feeds: Iterable[Feed], tally: Tally, room: int | None) -> dict[Key, Any]:
        """Return the totals over `feeds`, by tensor and kind, of the first tensors that fit into `room`."""
        places = {name: place for place, name in enumerate(self._outputs)}
        sums = [
            {
                (one.tensor, kind.name): Sum(kind.empty(one), _reader(places, one, kind))
                for kind in kinds_of(one)
            }
            for one in self._tensors
        ]
        return gather(self._runs.run(feeds), sums, tally, room)

    def _insert_observers(self, plan: Plan) -> onnx.ModelProto:
        """Return the model with observers; its outputs are theirs, none if there is nothing to observe.

        Weights are in a file in `_folder`; sessions read the weights of a large model without a copy.
        """
        model, self._folder = self._model, None
        if not is_large(model.proto):
            self._folder = self._files.enter_context(scratch_folder())
            with room_for_scratch():
                model = replace(model, proto=split_weights(model.proto, self._folder / "weights"))
        # Sessions read this file: what observers add stays in it.
        with nullcontext() if self._folder is None else weights_stored_in(None):
            proto = self._observe(model, plan).proto
        self._outputs = [output.name for output in proto.graph.output] if self._tensors else []
        return proto if self._folder is None else widen_model(fix_draws(proto))

    def _write(self, proto: onnx.ModelProto) -> onnx.ModelProto | Path:
        """Write the observed model, or a part of it, next to its weights; return its path."""
        if self._folder is None:
            return proto
        path = self._folder / f"{next(self._numbers)}.onnx"
        with room_for_scratch():
            onnx.save(proto, path)
        return path

    def _open_run(self, threads: int) -> Callable[[Feed], tuple[list[NDArray[Any]], DataDigest]]:
        """Return a function from a feed to its results and digest; without outputs nothing is run."""
        if not self._outputs:
            return lambda feed: ([], self._digest(feed))
        session = self._session(threads)
        return lambda feed: (session.run(feed, self._outputs), self._digest(feed))

    def _session(self, threads: int) -> Session | SegmentedSession:
        def open_part(part: onnx.ModelProto) -> Session:
            written = self._write(part)
            if isinstance(written, Path):
                return open_observing_session(written, threads)
            return Session(written, threads)

        return open_in_segments(self._observed, open_part, self._outputs)


class MergingObserver(StatisticsObserver):
    """An observer whose model merges the statistics itself, in the memory of `device`.

    For GPUs; on a CPU it gives the same statistics, slower, because its tensors lose their layout.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        options: ObserveOptions,
        device: Device,
        tensors: list[Observed] | None = None,
    ) -> None:
        """As for an Observer; the first run creates the session."""
        super().__init__(model, plan, options, tensors)
        self._device = device
        self._merging: Session | None = None

    def __exit__(self, *exception: object) -> None:
        """Release the session and remove temporary files."""
        super().__exit__(*exception)
        self._merging = None

    def _observe(self, model: Model, plan: Plan) -> Model:
        return with_merging(model, plan, self._options.feed_ranges, self._options.nonfinite == "stop")

    def _gather(self, feeds: Iterable[Feed], tally: Tally, room: int | None) -> dict[Key, Any]:
        if not self._tensors:
            return super()._gather(feeds, tally, room)
        ranges: list[NDArray[np.float32]] = []
        with self._open_gathering() as gathering:
            for heads, of_feed in tally.over(gathering.run(feeds, self._digest)):
                self._check(heads, gathering.rows, tally.number)
                ranges.append(state_ranges(of_feed))
            kept = np.zeros((0, gathering.rows[-1].stop, 2), np.float32)  # [feeds, states, 2]
            if ranges and self._options.feed_ranges:
                kept = np.stack(ranges)
            found = [
                dict(zip(OBSERVE_OUTPUTS, read_states(gathering.states(number)), strict=True))
                for number in range(len(self._tensors))
            ]
        values: dict[Key, Any] = {}
        for one, results, rows in zip(self._tensors, found, gathering.rows, strict=True):
            if one.channels:
                results["channels"] = gathering.channels(one.tensor)[: one.channels if tally.done else 0]
            for kind in kinds_of(one):
                arrays = [results[output] for output in kind.outputs]
                assert kind.read is not None
                values[one.tensor, kind.name] = kind.read(one, arrays, kept[:, rows])
        return values

    def fault_of(self, feeds: Sequence[Feed]) -> OnnxfqError | None:
        """Run `feeds` and discard the results; return the error that stops them on the device, if any."""
        if not self._tensors:
            return None
        try:
            with self._open_gathering() as gathering:
                for feed in feeds:
                    gathering.add(feed)
        except (DataError, DeviceMemoryError, ModelError) as error:
            return error
        return None

    @contextmanager
    def _open_gathering(self) -> Iterator[Gathering]:
        if self._merging is None:
            self._merging = self._session(self._options.threads)
        with open_place(self._device) as place:
            yield Gathering(self._merging, self._tensors, place)

    def _check(self, heads: NDArray[np.int64], rows: Sequence[slice], feed: int) -> None:
        """Raise at the first NaN or infinity, if they stop the run: all earlier feeds had none."""
        for one, own in zip(self._tensors, rows, strict=True):
            if not one.stop:
                continue
            nans, infinities = (int(heads[own, kind].sum()) for kind in (STATE_NANS, STATE_INFINITIES))
            refuse_nonfinite(one.tensor, nans, infinities, feed)

    def _session(self, threads: int) -> Session:
        return Session(self._write(self._observed), threads, device=self._device)


def _reader(places: Mapping[str, int], one: Observed, kind: Kind[Any]) -> Callable[[Results], Results]:
    """Return a function from the outputs of a run, at `places`, to the arrays for `kind` of a tensor."""
    state = places.get(observe_output(one.tensor, STATE_OUTPUT))
    if state is not None:
        columns = [OBSERVE_OUTPUTS.index(output) for output in kind.outputs]

        def read(arrays: Results) -> Results:
            results = read_state(arrays[state])
            return [results[column] for column in columns]

        return read
    wanted = [places[observe_output(one.tensor, output)] for output in kind.outputs]
    return lambda arrays: [arrays[place] for place in wanted]

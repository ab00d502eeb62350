"""`QuantizerToggles`: a model that is loaded once, whose quantizers are switched on and off one by one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.data.stream import StreamSamples, lead_to
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError, ModelError
from onnxfq.execution.given_choices import add_choices
from onnxfq.execution.sequences import FedBack
from onnxfq.execution.toggled_segments import State, SwitchedSegments
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import TRANSPOSES
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.patterns.parts import part_sums
from onnxfq.graph.signature import output_names
from onnxfq.metrics.outputs import FlatOutput
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.windows import WINDOW, Places, divide_windows, window_ratios
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.passes.insert_fake_quantize import switch_weights, switched_tensors
from onnxfq.runtime.parallel_runs import count_cores
from onnxfq.runtime.session import Progress
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.insert import insert_fake_quantize
from onnxfq.stages.options import RunOptions
from onnxfq.support.groups import find_connected
from onnxfq.targets.target import target_by_name


def first_feeds(kept: Sequence[Feed], count: int) -> Sequence[Feed]:
    """Return the first `count` of the kept feeds, or all if they are fewer. Raises DataError without.

    In a stream these are the last `count` windows, where the error of a state is most, with the feeds that
    lead there. A single window is returned alone.
    """
    if not kept:
        raise DataError("measuring the noise of layers needs data; give data")
    if not isinstance(kept, StreamSamples):
        return kept[:count]
    found = kept.part(slice(-count * WINDOW, None))
    return found if count > 1 else [*found]


@dataclass(frozen=True)
class LayerGroup:
    """Quantized tensors that the same nodes read, by their switches."""

    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    switches: tuple[int, ...]


class QuantizerToggles:
    """A model whose quantizers are switched one by one."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        plan: Plan,
        judged: JudgedTensors,
        results: Sequence[str],
        threads: int,
    ) -> None:
        """Create the sessions.

        Args:
            proto: with a switch for each tensor of `plan`.
            plan: the quantized tensors.
            judged: what decides, whose noise is measured.
            results: outputs of the model, for a metric.
            threads: feeds at a time, 0 for one per core; each runs on one thread.
        """
        self.plan, self.judged, self.results = plan, judged, list(results)
        self.proto, self._threads = proto, threads or count_cores()
        # A metric reads outputs that depend on the model's own choices, noise those on the float model's.
        self._own = SwitchedSegments(proto, [*judged.deciding, *judged.choices, *self.results])
        given = with_given_choices(proto, judged.choices)
        kept = [*judged.deciding, *judged.states]
        self._model = SwitchedSegments(given, kept) if judged.choices else self._own
        self._switches = {tensor: number for number, tensor in enumerate(switched_tensors(plan))}
        self._float: dict[int, tuple[Feed, Feed, Feed]] = {}

    @staticmethod
    def open(
        inputs: QuantizeSession,
        plan: Plan,
        encodings: Encodings,
        options: RunOptions,
        rounded: Mapping[str, onnx.TensorProto] | None = None,
    ) -> QuantizerToggles:
        """Return the switchboard of a plan; the weights in `rounded` have these values if switched on.

        Raises ModelError for a model without floats that outputs come from.
        """
        if not inputs.judged.deciding:
            raise ModelError(
                f"no output of the model ({', '.join(output_names(inputs.model.proto))}) holds floats or "
                "comes from floats that quantization changes; there is no noise to measure"
            )
        proto = insert_fake_quantize(inputs.model, plan, encodings, switches="each")
        if rounded:
            proto = switch_weights(proto, rounded, switched_tensors(plan))
        return QuantizerToggles(proto, plan, inputs.judged, output_names(inputs.model.proto), options.threads)

    @cached_property
    def groups(self) -> list[LayerGroup]:
        """Groups of tensors in the order of the plan: tensors that a node, or a unit, reads belong together.

        A Concat or pooling between quantized tensors joins no groups: it follows its neighbours. Caches are
        in no group: runtimes keep all of them in one type.
        """
        bridges = {bridge.node for bridge in self.plan.bridges}
        uses = {
            p.tensor: [use.node for use in p.uses if use.node and use.node not in bridges]
            or [use.node for use in p.uses if use.node]
            for p in self.plan.placements
        }
        index = GraphIndex.of_model(self.proto)
        moves = {
            node.name: [reader.name for reader in index.readers.get(node.output[0], ())]
            for node in index.nodes
            if node.op_type in TRANSPOSES
        }
        uses |= {p.tensor: _multiplying_nodes(moves, uses[p.tensor]) for p in self.plan.weights}
        first: dict[str, str] = {}
        stored = {placement.tensor for placement in self.plan.placements if placement.stored}
        layers = [tensor for tensor in self._switches if tensor not in stored]
        unit = target_by_name(self.plan.target).unit
        links = ((tensor, first.setdefault(unit(node), tensor)) for tensor in layers for node in uses[tensor])
        return [
            LayerGroup(
                tuple(tensors),
                tuple(dict.fromkeys(node for tensor in tensors for node in uses[tensor])),
                tuple(self._switches[tensor] for tensor in tensors),
            )
            for tensors in find_connected(layers, links)
        ]

    def reading(self, nodes: Iterable[str], tensors: Iterable[str]) -> LayerGroup:
        """Return the group of `tensors` and of what `nodes` read, as far as it is quantized."""
        readers, named = set(nodes), set(tensors)
        found = [
            p.tensor
            for p in self.plan.placements
            if p.tensor in named or not readers.isdisjoint(use.node for use in p.uses)
        ]
        return LayerGroup(tuple(found), tuple(readers), tuple(self._switches[tensor] for tensor in found))

    def single(self, tensors: Iterable[str]) -> list[LayerGroup]:
        """Return a group for each tensor alone."""
        return [LayerGroup((tensor,), (), (self._switches[tensor],)) for tensor in tensors]

    def named(self, group: LayerGroup) -> LayerGroup:
        """Return a group; with the nodes that make its tensors if none reads them, as of outputs."""
        makers = {} if group.nodes else GraphIndex.of_model(self.proto).makers
        ends = [makers[tensor] for tensor in group.tensors if tensor in makers]
        made = tuple(makers.get(end.input[0], end).name for end in ends)
        return replace(group, nodes=group.nodes or made)

    def enable(self, groups: Iterable[LayerGroup], on: bool = True) -> State:
        """Return switches with only `groups` on, or with only these off."""
        switches = np.full(len(self._switches), not on)
        for group in groups:
            switches[list(group.switches)] = on
        return switches

    @property
    def everything(self) -> State:
        """The state with everything quantized."""
        return self.enable([], on=False)

    @property
    def nothing(self) -> State:
        """The state with everything in float."""
        return self.enable([])

    def set(self, state: State) -> Callable[[Iterable[Feed]], Iterator[dict[str, NDArray[Any]]]]:
        """Return `run` with a state of the switches."""
        return partial(self.run, state=state)

    def run(self, feeds: Iterable[Feed], state: State) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the outputs of the model by name for each feed, with few feeds at a time in memory."""
        with ThreadPoolExecutor(self._threads) as pool:
            flying: deque[Future[Feed]] = deque()
            for feed in feeds:
                flying.append(pool.submit(self._own.run, feed, state))
                if len(flying) > self._threads:
                    yield self._results(flying.popleft())
            while flying:
                yield self._results(flying.popleft())

    def _results(self, run: Future[Feed]) -> dict[str, NDArray[Any]]:
        made = run.result()
        return {name: made[name] for name in self.results}

    def noise(
        self, feeds: Sequence[Feed], states: Sequence[State], progress: Progress | None = None
    ) -> list[float]:
        """Return the noise-to-signal ratio of the worst deciding part for each state of the switches.

        A ratio is the squared error over the squared float value, each summed over all feeds; inf if the
        model overflows. It is the measure of `CandidateScore.lowest_db`. The results in float are kept for
        the next call with the same feeds. A stream is run in sequences, and its worst window counts.
        """
        given, places = lead_to(feeds)
        fed_back = self._follow(given)
        feeds = given if fed_back is not None else feeds
        starts = [self._model.first(state) for state in states]
        traced = sum(start > 0 for start in starts) > 1
        found: list[list[list[ErrorSums]]] = [[] for _ in states]
        with ThreadPoolExecutor(self._threads) as pool:
            flying: list[tuple[list[list[ErrorSums]], Future[list[list[ErrorSums]]]]] = []
            if fed_back is not None:
                flying = [
                    (into, pool.submit(self._compare_sequence, feeds, state, fed_back, model))
                    for model, (into, state) in enumerate(zip(found, states, strict=True), 1)
                ]
            for feed in feeds if fed_back is None else ():
                # Only the runs of a feed hold its trace, which is freed after them. They can wait for it:
                # it was submitted before them, and thus has a thread.
                trace = pool.submit(self._trace, feed) if traced or id(feed) not in self._float else None
                flying += [
                    (into, pool.submit(self._compare, feed, state, trace, start))
                    for into, state, start in zip(found, states, starts, strict=True)
                ]
            for number, (into, run) in enumerate(flying, 1):
                into += run.result()
                if progress is not None:
                    progress(number)
        parts = [len(self.judged.parts.get(name, ())) for name in self.judged.deciding]
        divided = [count > 0 for count in parts for _ in range(max(count, 1))]
        windows = [np.arange(len(feeds))]
        if fed_back is not None:
            windows = divide_windows(fed_back.steps, [place is not None for place in places])
        return [_pool_ratio(sums, divided, windows) for sums in found]

    def _trace(self, feed: Feed) -> list[Feed]:
        """Return the tensors of the float model before each segment; keep those that decide."""
        chosen = self._own.run(feed, self.nothing) if self.judged.choices else {}
        given = add_choices(feed, {name: chosen[name] for name in self.judged.choices})
        trace = self._model.trace(given, self.nothing)
        names = (*self.judged.deciding, *self.judged.states)
        self._float[id(feed)] = feed, {name: trace[-1][name] for name in names}, given
        return trace

    def _follow(self, feeds: Sequence[Feed]) -> FedBack | None:
        """Return the state of the float model on `feeds`; None if none of them continues the one before."""
        fed_back = FedBack(self.judged.states, [*self.judged.states])
        for number, feed in enumerate(feeds if self.judged.states else ()):
            if id(feed) not in self._float:
                self._trace(feed)
            fed_back.give(0, number, feed)
            fed_back.take(0, [self._float[id(feed)][1][name] for name in self.judged.states])
        longest = max((n for of in self.judged.states.values() for n in fed_back.lengths(of)), default=0)
        return fed_back if longest > 1 else None

    def _compare_sequence(
        self, feeds: Sequence[Feed], state: State, fed_back: FedBack, model: int
    ) -> list[list[ErrorSums]]:
        """Return the error of each deciding part on each feed of a model that takes its own state."""
        found = []
        for number, feed in enumerate(feeds):
            made = self._model.run(fed_back.give(model, number, self._float[id(feed)][2]), state)
            fed_back.take(model, [made[name] for name in self.judged.states])
            found.append(self._errors(feed, made))
        return found

    def _compare(
        self, feed: Feed, state: State, trace: Future[list[Feed]] | None, start: int
    ) -> list[list[ErrorSums]]:
        """Return the error of each deciding part on one feed, from segment `start` on with a trace."""
        given, first = (self._float[id(feed)][2], 0) if trace is None else (trace.result()[start], start)
        return [self._errors(feed, self._model.run(given, state, first))]

    def _errors(self, feed: Feed, made: Feed) -> list[ErrorSums]:
        found: list[ErrorSums] = []
        for name in self.judged.deciding:
            parts = self.judged.parts.get(name, ())
            want, have = (FlatOutput.of(given[name]) for given in (self._float[id(feed)][1], made))
            # The boxes of a detector may differ in number, and are then left out.
            same = want.form == have.form
            found += part_sums(parts, want.array, have.array) if same else [ErrorSums()] * max(len(parts), 1)
        return found


def _multiplying_nodes(moves: Mapping[str, Sequence[str]], readers: Iterable[str]) -> list[str]:
    """Return `readers`, in the place of a Transpose the operators behind it, which overrides match."""
    nested = (_multiplying_nodes(moves, moves[name]) if name in moves else [name] for name in readers)
    return [name for names in nested for name in names]


def _pool_ratio(
    found: Sequence[Sequence[ErrorSums]], divided: Sequence[bool], windows: Sequence[Places]
) -> float:
    """Return the largest noise-to-signal ratio, each pooled over a window; parts that are zero have none."""
    ratios = [0.0]
    for sums, is_part in zip(zip(*found, strict=True), divided, strict=True):
        signals, noises = [one.signal for one in sums], [one.noise for one in sums]
        if any(signals) or not is_part:
            ratios += window_ratios(windows, signals, noises)
    largest = float(np.max(ratios))
    return largest if np.isfinite(largest) else math.inf

"""`sensitivity`: which quantizers cost the accuracy, measured in one session.

Every group of quantizers is switched on alone. One layer left in float finds nothing when two are fatal; one
layer quantized alone finds both. Squared errors and signals are summed over samples before they are divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Data, Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from onnxfq.documents.sensitivity import GroupNoise, Remedy, Sensitivity
from onnxfq.errors import DataError, ModelError
from onnxfq.graph.external.sizes import tensor_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.patterns.logits import measured_outputs
from onnxfq.graph.signature import with_outputs
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, switched_tensors
from onnxfq.runtime.parallel_runs import count_cores
from onnxfq.runtime.session import Progress, Session
from onnxfq.stages.encoding_sources import plan_encodings
from onnxfq.stages.gather import gather_statistics
from onnxfq.stages.insert import insert_fake_quantize
from onnxfq.stages.options import RunOptions
from onnxfq.stages.quantize_inputs import QuantizeInputs, open_inputs

SAMPLES = 2
"""Feeds that rank the groups."""

MEASURED = 5
"""Groups, the worst, whose absence is measured too."""


def sensitivity(
    model: str | Path | onnx.ModelProto,
    data: Data,
    *,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    statistics: str | Path | Statistics | None = None,
    samples: int = SAMPLES,
    min_sqnr: float | None = None,
    options: RunOptions | None = None,
) -> Sensitivity:
    """Return the noise that each group of quantizers of `recipe` adds to the outputs of `model`.

    Args:
        model: a float model: a path or a ModelProto.
        data: as for `quantize`; it calibrates, and some feeds spread over it are measured.
        recipe: what is quantized and how.
        statistics: of the data, recorded earlier, so that nothing is observed.
        samples: number of feeds to measure.
        min_sqnr: dB; find the fewest groups in float that reach it, see `Sensitivity.remedy`.
        options: batch, threads and how data is read.

    Raises DataError for fewer than one sample, and the errors of `quantize`.
    """
    options, chosen = options or RunOptions(), load_recipe(recipe)
    if samples < 1:
        raise DataError(f"samples is {samples}; give at least 1")
    inputs = open_inputs(model, data, chosen, options, observed=statistics is not None)
    planned = plan_encodings(inputs.ranked, chosen)
    found = gather_statistics(inputs, planned.unknown, statistics, options)
    plan, encodings = planned.encode(inputs.model, found)
    board = Switchboard.open(inputs, plan, encodings, spread_feeds(inputs.kept, samples), options)
    ranked = rank_groups(board, chosen, options.stage("sensitivity"))
    return ranked if min_sqnr is None else with_remedy(board, ranked, min_sqnr)


def spread_feeds(kept: Sequence[Feed], count: int) -> list[Feed]:
    """Return `count` of the feeds, evenly spread, or all if they are fewer. Raises DataError without."""
    if not kept:
        raise DataError("measuring the noise of layers needs data; give data")
    places = np.linspace(0, len(kept) - 1, min(count, len(kept))).round().astype(int)
    return [kept[place] for place in places]


@dataclass(frozen=True)
class Group:
    """Quantized tensors that the same nodes read, by their switches."""

    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    switches: tuple[int, ...]


class Switchboard:
    """One session of a model whose quantizers are switched one by one, and the feeds it is measured on."""

    def __init__(
        self, proto: onnx.ModelProto, plan: Plan, outputs: Sequence[str], feeds: Sequence[Feed], threads: int
    ) -> None:
        """Create the session and run the feeds in float.

        Args:
            proto: with a switch for each tensor of `plan`.
            plan: the quantized tensors.
            outputs: tensors to measure.
            feeds: at least one.
            threads: feeds at a time, 0 for one per core; each runs on one thread.
        """
        self.plan, self.outputs, self.feeds = plan, list(outputs), list(feeds)
        self.proto, self._threads = proto, threads or count_cores()
        self._session = Session(with_outputs(proto, self.outputs), 1)
        self.switches = {tensor: number for number, tensor in enumerate(switched_tensors(plan))}
        off = np.zeros(len(self.switches), bool)
        self._float = [self._session.run(feed | {ENABLED_INPUT: off}, self.outputs) for feed in self.feeds]

    @staticmethod
    def open(
        inputs: QuantizeInputs, plan: Plan, encodings: Encodings, feeds: Sequence[Feed], options: RunOptions
    ) -> Switchboard:
        """Return the switchboard of a plan for `feeds`. Raises ModelError without an output of numbers."""
        outputs = measured_outputs(inputs.model.proto)
        if not outputs:
            raise ModelError("the model has no output of numbers; there is nothing to measure")
        proto = insert_fake_quantize(inputs.model, plan, encodings, switches="each")
        return Switchboard(proto, plan, outputs, feeds, options.threads)

    def on(self, feeds: Sequence[Feed]) -> Switchboard:
        """Return the same session for some of its feeds."""
        made = copy(self)
        places = [next(at for at, own in enumerate(self.feeds) if own is feed) for feed in feeds]
        made.feeds, made._float = list(feeds), [self._float[at] for at in places]
        return made

    @cached_property
    def groups(self) -> list[Group]:
        """Groups of tensors in the order of the plan: tensors that a node reads belong together.

        A Concat or pooling between quantized tensors joins no groups: it follows its neighbours.
        """
        bridges = {bridge.node for bridge in self.plan.bridges}
        uses = {
            p.tensor: [use.node for use in p.uses if use.node and use.node not in bridges]
            or [use.node for use in p.uses if use.node]
            for p in self.plan.placements
        }
        owner: dict[str, str] = {}

        def find(tensor: str) -> str:
            while owner.setdefault(tensor, tensor) != tensor:
                tensor = owner[tensor]
            return tensor

        first: dict[str, str] = {}
        for tensor in self.switches:
            for node in uses[tensor]:
                owner[find(tensor)] = find(first.setdefault(node, tensor))
        members: dict[str, list[str]] = {}
        for tensor in self.switches:
            members.setdefault(find(tensor), []).append(tensor)
        return [
            Group(
                tuple(tensors),
                tuple(dict.fromkeys(node for tensor in tensors for node in uses[tensor])),
                tuple(self.switches[tensor] for tensor in tensors),
            )
            for tensors in members.values()
        ]

    def enable(self, groups: Iterable[Group], on: bool = True) -> NDArray[np.bool_]:
        """Return switches with only `groups` on, or with only these off."""
        switches = np.full(len(self.switches), not on)
        for group in groups:
            switches[list(group.switches)] = on
        return switches

    def noise(self, states: Sequence[NDArray[np.bool_]], progress: Progress | None = None) -> list[float]:
        """Return the noise-to-signal ratio for each state of the switches, averaged over the outputs.

        A ratio is the squared error over the squared float value, each summed over all feeds; inf if the
        model overflows.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            flying = [
                [pool.submit(self._compare, state, at) for at in range(len(self.feeds))] for state in states
            ]
            ratios = []
            for runs in flying:
                ratios.append(_pool_ratio([run.result() for run in runs]))
                if progress is not None:
                    progress(len(ratios))
        return ratios

    def _compare(self, state: NDArray[np.bool_], at: int) -> list[ErrorSums]:
        """Return the error of each output on feed number `at`."""
        got = self._session.run(self.feeds[at] | {ENABLED_INPUT: state}, self.outputs)
        # The boxes of a detector may differ in number, and are then left out.
        return [
            ErrorSums.from_arrays(want, have) if want.shape == have.shape else ErrorSums()
            for want, have in zip(self._float[at], got, strict=True)
        ]


def _pool_ratio(found: Sequence[Sequence[ErrorSums]]) -> float:
    """Return the noise-to-signal ratio, pooled over feeds and averaged over outputs."""
    pooled = [sum(sums, ErrorSums()) for sums in zip(*found, strict=True)]
    mean = float(np.mean([one.noise / one.signal if one.signal else 0.0 for one in pooled]))
    return mean if np.isfinite(mean) else float("inf")


def rank_groups(board: Switchboard, recipe: Recipe, progress: Progress | None = None) -> Sensitivity:
    """Return the groups by their noise alone; for the worst also the noise of all others."""
    groups = board.groups
    everything = board.enable(groups)
    alone = board.noise([everything, *(board.enable([group]) for group in groups)], progress)
    order = sorted(range(len(groups)), key=lambda at: -alone[1 + at])
    worst = order[:MEASURED]
    rest = dict(zip(worst, board.noise([board.enable([groups[at]], on=False) for at in worst]), strict=True))
    costs = _costs(board)
    made = tuple(
        GroupNoise(
            tensors=groups[at].tensors,
            nodes=groups[at].nodes,
            op_types=costs.op_types(groups[at]),
            noise=alone[1 + at],
            rest=rest.get(at),
            multiplies=costs.multiplies(groups[at]),
            weight_bytes=costs.weight_bytes(groups[at]),
        )
        for at in order
    )
    return Sensitivity(
        model_sha256=board.plan.model_sha256,
        recipe=recipe.name,
        outputs=tuple(board.outputs),
        samples=len(board.feeds),
        noise=alone[0],
        groups=made,
    )


def with_remedy(board: Switchboard, ranked: Sensitivity, wanted: float) -> Sensitivity:
    """Return `ranked` with the fewest of its worst groups in float that reach `wanted` dB.

    The sum of the noises predicts the number; measurements of twice as many, then by halves, find it. Gains
    are not monotone: a smaller number that was not measured may do as well.
    """
    by_tensors = {group.tensors: group for group in board.groups}
    groups = [by_tensors[group.tensors] for group in ranked.groups]
    limit, total = 10 ** (-wanted / 10), sum(group.noise for group in ranked.groups)

    def measure(count: int) -> float:
        return board.noise([board.enable(groups[:count], on=False)])[0]

    known = {0: ranked.noise}
    left, count = ranked.noise, 0
    while count < len(groups) and left > limit:
        count += 1
        share = sum(group.noise for group in ranked.groups[:count]) / total if total else 1.0
        left = ranked.noise * (1 - share)
    while count < len(groups) and known.setdefault(count, measure(count)) > limit:
        count = min(len(groups), max(count + 1, 2 * count))
    known.setdefault(count, 0.0 if count == len(groups) else measure(count))
    low = max((tried for tried, noise in known.items() if tried < count and noise > limit), default=count)
    while count - low > 1:
        middle = (low + count) // 2
        known.setdefault(middle, measure(middle))
        low, count = (middle, count) if known[middle] > limit else (low, middle)
    shares = [group.multiplies for group in ranked.groups[:count]]
    known_shares = [share for share in shares if share is not None]
    remedy = Remedy(
        wanted_db=wanted,
        reached_db=ratio_db(1.0, known[count]),
        groups=count,
        multiplies=sum(known_shares) if len(known_shares) == len(shares) else None,
    )
    return ranked.model_copy(update={"remedy": remedy})


def _run_shapes(board: Switchboard, tensors: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of computed `tensors` of the main graph on the first feed, without their values."""
    proto = onnx.ModelProto()
    proto.CopyFrom(board.proto)
    taken = GraphIndex(proto.graph).names
    names = {tensor: taken.claim(f"{tensor}/shape") for tensor in tensors}
    proto.graph.node.extend(onnx.helper.make_node("Shape", [t], [n], n) for t, n in names.items())
    asked = list(names.values())
    found = Session(with_outputs(proto, asked), 1).run(board.feeds[0], asked) if asked else []
    return {tensor: tuple(shape.tolist()) for tensor, shape in zip(tensors, found, strict=True)}


@dataclass(frozen=True)
class _Costs:
    """Multiply-adds by node and bytes by weight of the main graph."""

    types: dict[str, str]
    products: dict[str, int]
    sizes: dict[str, int]

    def op_types(self, group: Group) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.types[node] for node in group.nodes if node in self.types))

    def multiplies(self, group: Group) -> float | None:
        total = sum(self.products.values())
        return sum(self.products.get(node, 0) for node in group.nodes) / total if total else None

    def weight_bytes(self, group: Group) -> float:
        total = sum(self.sizes.values())
        return sum(self.sizes.get(tensor, 0) for tensor in group.tensors) / total if total else 0.0


_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def _costs(board: Switchboard) -> _Costs:
    """Return the costs, with the shapes of a run on the first feed."""
    graph = board.proto.graph
    index = GraphIndex(graph)
    products = [node for node in graph.node if node.op_type in _PRODUCTS]
    tensors = list(dict.fromkeys(name for node in products for name in (*node.input[:2], node.output[0])))
    shapes = _run_shapes(board, [name for name in tensors if name in index.makers])
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes |= {name: array.shape for name, array in board.feeds[0].items()}
    sizes = {tensor.name: tensor_bytes(tensor) for tensor in graph.initializer}
    counts = {}
    for node in products:
        left, right = (shapes.get(name, ()) for name in node.input[:2])
        made = prod(shapes.get(node.output[0], ()))
        if node.op_type == "Conv":
            counts[node.name] = made * prod(right[1:])
        elif node.op_type == "ConvTranspose":
            counts[node.name] = prod(left) * prod(right[1:])
        else:
            transposed = any(attr.name == "transA" and attr.i for attr in node.attribute)
            counts[node.name] = made * (left[-2 if transposed else -1] if left else 1)
    weights = {p.tensor: sizes[p.tensor] for p in board.plan.weights if p.tensor in sizes}
    return _Costs({node.name: node.op_type for node in list_nodes(graph)}, counts, weights)

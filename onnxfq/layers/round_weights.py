"""`round_weights`: weights on their grids that keep the outputs of their layers, by moments of the inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import onnx

from onnxfq.calibration.weights import (
    METHODS,
    InputMoments,
    Moments,
    RoundedWeight,
    RoundingJob,
    round_weight,
)
from onnxfq.data import Feed
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import StatisticsError
from onnxfq.execution.cluster import Cluster
from onnxfq.graph.constants import weight_array
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.layers.moments import collect_moments, layer_keys
from onnxfq.layers.sequential_moments import SequentialModels
from onnxfq.layers.weighted_layers import WeightedLayer, find_layers
from onnxfq.numerics.block_scales import Scales
from onnxfq.numerics.metrics import ratio_db
from onnxfq.passes.replace_constants import replace_weights, separate_float_readers, weight_tensor
from onnxfq.stages.derived_scales import encode_biases
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.options import RunOptions
from onnxfq.support.progress import counting
from onnxfq.targets.target import prepare_model


class RoundedLayer(NamedTuple):
    """Expected error of one weight with and without rounding by moments.

    Attributes:
        weight: its name.
        method: a name in METHODS.
        before_db: expected SQNR of the outputs with the nearest numbers, in dB.
        after_db: the same with the rounded weight.
    """

    weight: str
    method: str
    before_db: float
    after_db: float


@dataclass(frozen=True)
class Rounding:
    """Result of `round_weights`.

    Attributes:
        model: the float model whose rounded weights lie on the grids of `encodings`.
        encodings: with the scales of the rounded weights, and of biases that depend on them.
        layers: in the order of rounding.
        nearest: reasons of the weights that keep the nearest numbers, by name.
        tensors: the rounded weights by name.
        beside: the result of the second method that was asked for; None without one.
    """

    model: Model
    encodings: Encodings
    layers: tuple[RoundedLayer, ...] = ()
    nearest: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    beside: Rounding | None = None

    def for_plan(self, model: Model, plan: Plan, encodings: Encodings) -> Rounding:
        """Return the same rounding for another plan of `model`: of the weights that kept their format.

        Args:
            model: the float model.
            plan: the other plan.
            encodings: of that plan, before rounding.
        """
        model = prepare_model(model, plan.target)
        mine = {one.tensor: one for one in self.encodings.encodings}
        kept = {
            p.tensor: self.tensors[p.tensor]
            for p in plan.weights
            if p.tensor in self.tensors and mine[p.tensor].spec == encodings[p.tensor].spec
        }
        if not kept:
            return Rounding(model, encodings, nearest=self.nearest)
        known = {one.tensor: mine[one.tensor] if one.tensor in kept else one for one in encodings.encodings}
        made = _join_encodings(model, plan, encodings, known, self.encodings.rounding)
        layers = tuple(layer for layer in self.layers if layer.weight in kept)
        return Rounding(_with_rounded(model, plan, kept), made, layers, self.nearest, kept)

    def lines(self, shown: int = 6) -> list[str]:
        """Return a summary: the layers of largest expected error, and the weights that stay at nearest."""
        lines = []
        if self.layers:
            gains = [one.after_db - one.before_db for one in self.layers if np.isfinite(one.before_db)]
            methods = ", ".join(sorted({one.method for one in self.layers}))
            lines.append(
                f"rounding   {methods} for {len(self.layers)} weights; their expected SQNR gains "
                f"{np.median(gains or [0.0]):.1f} dB in the median, the worst layers:"
            )
        lines += [
            f"           {one.weight!r}: {one.before_db:.1f} -> {one.after_db:.1f} dB"
            for one in sorted(self.layers, key=lambda one: one.before_db)[:shown]
        ]
        kept = [f"rounding   {name!r} stays at nearest: {why}" for name, why in self.nearest.items()]
        return (
            lines + kept[:shown] + ([f"           and {len(kept) - shown} more"] if len(kept) > shown else [])
        )


def is_shared(plan: Plan) -> bool:
    """Tell whether a cluster can share the rounding of some weights of `plan`."""
    return any(p.rounding != NEAREST and not METHODS[p.rounding].sequential for p in plan.weights)


def round_given(
    inputs: QuantizeSession,
    plan: Plan,
    encodings: Encodings,
    options: RunOptions,
    moments: Moments | None = None,
    ray: str | None = None,
    held_out: Sequence[Feed] = (),
    with_unseen: bool = False,
    beside: str = "",
) -> Rounding:
    """Return `round_weights` by moments or the data of `quantize`; without both all stay at nearest.

    The unseen samples and `held_out` are left out of the data, unless `with_unseen` takes the first in.
    """
    asked = [p.tensor for p in plan.weights if p.rounding != NEAREST]
    if moments is None and (inputs.feeds is None or not asked):
        return Rounding(inputs.model, encodings, nearest=dict.fromkeys(asked, "no data was given"))
    feeds: Iterable[Feed] = ()
    if inputs.feeds is not None:
        feeds = inputs.feeds.again(held_out, with_unseen)
    with weights_stored_in(inputs.scratch):
        return round_weights(
            inputs.model,
            plan,
            encodings,
            feeds,
            moments=moments,
            threads=options.threads,
            ray=ray,
            progress=counting("round", len(asked)),
            beside=beside,
        )


def round_weights(
    model: Model,
    plan: Plan,
    encodings: Encodings,
    feeds: Iterable[Feed],
    *,
    moments: Moments | None = None,
    threads: int = 0,
    ray: str | None = None,
    progress: Callable[[int], None] | None = None,
    beside: str = "",
) -> Rounding:
    """Round the weights of `plan` that ask for it by the second moments of their layers' inputs.

    The result depends neither on the order of the data nor on batches and threads. A sequential method takes
    only a part of data whose tensors need more memory than it may take.

    Args:
        model: the float model that the plan was made for.
        plan: whose placements name the rounding of each weight.
        encodings: of the plan.
        feeds: the data, which can be read several times; not read if there are moments.
        moments: of the inputs of the layers, gathered before with `gather_moments`.
        threads: cores to use, 0 for all.
        ray: address of a Ray cluster, or "local", that shares the feeds of the moments and then the layers;
            a sequential method does not use it.
        progress: called with the number of weights done.
        beside: a second method, not sequential, for the layers of a sequential one: it rounds them by the
            same inputs of the float model. It has no result if several nodes read a weight.

    Raises StatisticsError for an input of a layer that holds NaN or infinities, and for moments that do not
    fit the model or the methods, RuntimeLibraryError without ray or its cluster.
    """
    plan.check_model(model.sha256)
    if moments is not None:
        _check_moments(moments, model, plan)
    model = prepare_model(model, plan.target)
    layers, refused = find_layers(model, plan)
    asked = {p.tensor for p in plan.weights if p.rounding != NEAREST}
    layers = [layer for layer in layers if layer.placement.tensor in asked]
    refused = {name: why for name, why in refused.items() if name in asked}
    if not layers:
        return Rounding(model, encodings, nearest=refused)
    work = _Work(model, plan, encodings, progress, "" if moments is None else moments.origin)
    works = [work]
    if beside and all(len(layer.inputs) == 1 for layer in layers):
        works.append(_Work(model, plan, encodings, None, ""))
    plain = [layer for layer in layers if not METHODS[layer.placement.rounding].sequential]
    with nullcontext() if ray is None or not plain else Cluster(ray, threads) as cluster:
        if moments is not None:
            found = _read(moments, plain)
        else:
            found = collect_moments(model, plain, feeds, threads, cluster=cluster)
        jobs = ((layer, work.job(layer, inputs)) for layer, inputs in found)
        for layer, made in _round_each(jobs, cluster):
            for one in works:
                one.take(layer, made)
    rest = [layer for layer in layers if METHODS[layer.placement.rounding].sequential]
    if rest:
        with SequentialModels(model, plan, encodings, feeds, threads) as models:
            later = {one.placement.tensor for one in rest}
            models.set_nearest(work.encodings, work.tensors, later)
            for layer in models.order(rest):
                inputs = models.moments(layer)
                if inputs is None:
                    refused[layer.placement.tensor] = "its input has another shape in the quantized model"
                    models.set_nearest(work.encodings, work.tensors, later := later - refused.keys())
                else:
                    models.set_weight(work.take(layer, round_weight(work.job(layer, inputs))))
                    for one in works[1:]:
                        alike = layer.with_rounding(beside)
                        one.take(alike, round_weight(one.job(alike, inputs.of_float)))
    result, *others = (one.result(refused) for one in works)
    return replace(result, beside=others[0]) if others else result


def _check_moments(moments: Moments, model: Model, plan: Plan) -> None:
    """Raise StatisticsError unless `moments` are of the model, and all that the plan's rounding needs."""
    methods = {p.rounding for p in plan.weights} - {NEAREST}
    if not methods:
        raise StatisticsError(
            f"recipe {plan.recipe} rounds all weights to nearest, for which moments have no effect; take "
            "rounding gptq, or leave them out"
        )
    for name in methods:
        if METHODS[name].sequential:
            raise StatisticsError(
                f"rounding {name} also needs the inputs of the quantized model, which moments do not hold; "
                "take rounding gptq, or leave them out and give data"
            )
    moments.check_model(model.sha256)
    moments.check_whole()


def _read(moments: Moments, layers: Sequence[WeightedLayer]) -> Iterator[tuple[WeightedLayer, InputMoments]]:
    """Yield each layer with its moments; neighbours that read the same inputs share them."""
    for keys, same in groupby(layers, lambda layer: layer_keys([layer])):
        found = moments.of_layer(keys)
        yield from ((layer, found) for layer in same)


def _round_each(
    jobs: Iterable[tuple[WeightedLayer, RoundingJob]], cluster: Cluster | None
) -> Iterator[tuple[WeightedLayer, RoundedWeight]]:
    """Yield each layer with its rounded weight, in order; a task rounds all that read one input."""
    if cluster is None:
        yield from ((layer, round_weight(job)) for layer, job in jobs)
        return
    waiting: deque[Sequence[WeightedLayer]] = deque()

    def together() -> Iterator[Sequence[RoundingJob]]:
        for _, same in groupby(jobs, lambda job: id(job[1].moments)):
            layers, shared = zip(*same, strict=True)
            waiting.append(layers)
            yield shared

    for made in cluster.map(str, _round_all, together()):
        yield from zip(waiting.popleft(), made, strict=True)


def _round_all(opened: object, jobs: Sequence[RoundingJob]) -> list[RoundedWeight]:
    return [round_weight(job) for job in jobs]


class _Work:
    """Weights and encodings while layers are rounded."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        encodings: Encodings,
        progress: Callable[[int], None] | None,
        origin: str,
    ) -> None:
        self._origin = origin
        self._model, self._plan, self._given, self._progress = model, plan, encodings, progress
        self.encodings = {one.tensor: one for one in encodings.encodings}
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.layers: list[RoundedLayer] = []
        self.unread: dict[str, str] = {}

    def job(self, layer: WeightedLayer, moments: InputMoments) -> RoundingJob:
        """Return what rounding the weight of `layer` takes."""
        placement, name = layer.placement, layer.placement.tensor
        old = self.encodings[name]
        return RoundingJob(
            weight_array(self._model, name).astype(np.float32),
            placement.spec,
            Scales(old.scale, old.zero_point.astype(np.float32), old.global_scale),
            layer.view,
            moments,
            placement.rounding,
            placement.float_type,
        )

    def take(self, layer: WeightedLayer, made: RoundedWeight) -> onnx.TensorProto:
        """Take over the rounded weight of `layer`, and return it."""
        placement, name = layer.placement, layer.placement.tensor
        self.encodings[name] = _with_scales(self.encodings[name], made.scales)
        self.tensors[name] = weight_tensor(name, made.values, weight_array(self._model, name))
        before, after = (ratio_db(made.signal, noise) for noise in (made.before, made.after))
        if made.signal == 0.0:  # such as an expert that no token reaches
            self.unread[name] = "its input is 0 in all samples; give samples that reach it"
        else:
            self.layers.append(RoundedLayer(name, placement.rounding, before, after))
        if self._progress is not None:
            self._progress(len(self.tensors))
        return self.tensors[name]

    def result(self, refused: dict[str, str]) -> Rounding:
        """Return the rounded weights, with the reasons of those that are not."""
        methods = ", ".join(sorted({one.method for one in self.layers})) + self._origin
        made = _join_encodings(self._model, self._plan, self._given, self.encodings, methods)
        model = _with_rounded(self._model, self._plan, self.tensors)
        return Rounding(model, made, tuple(self.layers), refused | self.unread, self.tensors)


def _with_rounded(model: Model, plan: Plan, tensors: Mapping[str, onnx.TensorProto]) -> Model:
    return replace_weights(separate_float_readers(model, plan, tensors), tensors)


def _join_encodings(
    model: Model, plan: Plan, given: Encodings, weights: Mapping[str, Encoding], methods: str
) -> Encodings:
    """Return `given` with the scales in `weights`, dependent scales of biases, and the methods."""
    known = {**weights, **{one.tensor: one for one in encode_biases(model, plan, weights.values())}}
    changes = {"encodings": tuple(known[one.tensor] for one in given.encodings), "rounding": methods}
    return given.model_copy(update=changes)


def _with_scales(old: Encoding, scales: Scales) -> Encoding:
    scale = scales.scale.reshape(old.param_shape)
    zero_point = scales.zero_point.astype(old.zero_point.dtype).reshape(old.param_shape)
    return old.model_copy(update={"scale": scale, "zero_point": zero_point})

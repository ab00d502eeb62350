"""`equalize`: a float model of the same function whose channels quantize with less error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.calibration.calibrators.groups import MOST_OCTAVES
from onnxfq.calibration.channel_factors import (
    ALPHAS,
    Choice,
    FactorFormat,
    FactorProduct,
    FactorTensor,
    choose_factors,
)
from onnxfq.calibration.statistics.channel_moments import ChannelMoments
from onnxfq.data import Feed
from onnxfq.documents.equalization import METHODS, EqualizedGroup, Method
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import ChannelMethods
from onnxfq.graph.channels import Analysis, Carried, ChannelGroup, Fold, analyze_channels
from onnxfq.graph.constants import weight_array
from onnxfq.graph.external.streaming import hash_model
from onnxfq.graph.follow import readers_behind
from onnxfq.graph.model import Model
from onnxfq.graph.names import Use
from onnxfq.graph.ops import MOVES, WEIGHTED_INPUTS
from onnxfq.graph.patterns.attention import find_attentions
from onnxfq.layers.channel_statistics import observe_channels
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.equalize import fold_factors, inexact_folds
from onnxfq.targets.target import target_by_name

EXPECTED_GAIN_DB = 0.5
"""Expected gain of the products of a group below which its factors stay 1."""

EXPECTED_GAIN_OF_NODE_DB = 1.0
"""The same for a group that needs a new Mul."""

_MOST_OCTAVES = 20
_MOST_OCTAVES_OF_HALF = 5
"""Largest exponents of factors; small numbers of float16 lose bits below 2^-14."""

SAMPLED = 1 << 17
"""Elements of a weight from which the expected error of a product is estimated by some of its outputs."""

_ROUNDS = 3
"""Times that the groups are chosen: a weight belongs to the groups of its inputs and of its outputs."""


@dataclass(frozen=True)
class Equalized:
    """Factors of channels.

    Attributes:
        given: the model as it was.
        analysis: its channels.
        channels: the groups.
        exponents: log2 of the factor of every channel.
        groups: what was done to each group, and what was left.
    """

    given: Model
    analysis: Analysis
    channels: tuple[ChannelGroup, ...]
    exponents: NDArray[np.int64]
    groups: tuple[EqualizedGroup, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the groups with factors."""
        return tuple(group.tensor for group in self.groups if not group.why)

    @property
    def expected_db(self) -> float:
        """Expected gain in dB of the products of all groups together; the worst ones decide it."""
        before = math.fsum(10.0 ** (-one.before_db / 10.0) for one in self.groups)
        return ratio_db(before, math.fsum(10.0 ** (-one.after_db / 10.0) for one in self.groups))

    @cached_property
    def model(self) -> Model:
        """The model of the same function, under the SHA-256 of its file; the given model without factors."""
        if not self.exponents.any():
            return self.given
        made = fold_factors(self.given, self.analysis, self.exponents)
        # The ends of limits are of tensors without factors.
        return replace(made, sha256=hash_model(made.proto), limits={})

    def without(self, reasons: Mapping[str, str]) -> Equalized:
        """Return the same with factors of 1 for the groups of these names, with the reasons."""
        exponents, groups = self.exponents.copy(), list(self.groups)
        for at, (channels, group) in enumerate(zip(self.channels, self.groups, strict=True)):
            if group.tensor in reasons and not group.why:
                exponents[channels.classes] = 0
                groups[at] = group.without_factors(reasons[group.tensor])
        return replace(self, exponents=exponents, groups=tuple(groups)).without_inexact()

    def without_inexact(self) -> Equalized:
        """Return the same without the groups whose factors would take bits of a constant."""
        reasons: dict[str, str] = {}
        inexact = inexact_folds(self.given, self.analysis, self.exponents)
        for channels in self.channels if inexact else ():
            lost = next((f.constant for f in inexact if f in channels.readers or f in channels.writers), "")
            if lost and self.exponents[channels.classes].any():
                reasons[channels.name] = f"constant {lost!r} would overflow or lose bits in its type"
        return self.without(reasons) if reasons else self


def equalize(
    model: Model,
    plan: Plan,
    methods: ChannelMethods,
    feeds: Sequence[Feed] = (),
    threads: int = 0,
    ranked: Model | None = None,
) -> Equalized:
    """Return `model` with channel factors that lower the expected error under `plan`.

    The factors are powers of two, folded into weights, biases and vectors; the outputs stay what they were.
    Without feeds the ranges of weights replace the ranges of activations.

    Args:
        model: the normalised float model, as the target of the plan prepares it.
        plan: what is quantized, and how.
        methods: which groups are tried.
        feeds: for the ranges of channels.
        threads: of the runs.
        ranked: the same model with ranks that only a run finds.
    """
    shaped = model if ranked is None else ranked
    wanted = [name for name in METHODS if getattr(methods, name)]
    analysis = _analyze(shaped, bool(methods.smooth and feeds), plan.target)
    used = {
        group.name: next((name for name in _methods(group) if name in wanted), None)
        for group in analysis.groups
    }
    method_by_group = {name: method for name, method in used.items() if method is not None}
    groups = [group for group in analysis.groups if group.name in method_by_group]
    terms = _quantized_terms(model, plan)
    carried = [one for group in groups for one in group.carried if one.tensor in terms]
    moments = observe_channels(model, groups, feeds, threads, carried) if feeds else {}
    chooser = _Chooser(model, plan, methods, method_by_group, moments)
    exponents = np.zeros(analysis.count, np.int64)
    found: list[EqualizedGroup] = []
    for _ in range(_ROUNDS - 1):
        before = exponents.copy()
        found = [chooser.choose(group, exponents, steps=False) for group in groups]
        if np.array_equal(before, exponents):
            break
    found = [chooser.choose(group, exponents, steps=True) for group in groups]
    return Equalized(model, analysis, tuple(groups), exponents, tuple(found)).without_inexact()


def find_groups(ranked: Model, method: Method, target: str) -> list[ChannelGroup]:
    """Return the groups of channels whose factors `method` would choose for `target` with data."""
    groups = _analyze(ranked, method == "smooth", target).groups
    return [group for group in groups if method in _methods(group)]


def _analyze(ranked: Model, with_new_nodes: bool, target: str) -> Analysis:
    """Return the channels of a model; only a new Mul can scale the tensors without free factors.

    A target that fuses an attention with the pair behind it has no such Mul between them: measured on
    TensorRT for RTX 1.7.1, an int8 attention is two products with it, and one kernel without.
    """
    if not with_new_nodes:
        return analyze_channels(ranked)
    kept = {value.name for value in ranked.proto.graph.input}  # better scaled by their user
    if target_by_name(target).policy.whole_attention:
        behind = [
            reader
            for attention in find_attentions(ranked.graph().nodes)
            for reader in readers_behind(attention.mix.outputs[0], MOVES | {"Cast"})
        ]
        kept |= {tensor.name for reader in behind for tensor in reader.inputs}
    return analyze_channels(ranked, frozenset(analyze_channels(ranked).blocked).difference(kept))


_WEIGHTED = WEIGHTED_INPUTS.keys() | {"BatchNormalization"}  # its statistics are constants too

_SUMS = ("Add", "Sum", "Concat")
"""Operators that pass the error of their terms on as it is."""


def _methods(group: ChannelGroup) -> tuple[Method, ...]:
    """Return the methods that choose the factors of `group`, the first that is asked for.

    Smoothing costs nothing at run time where a constant has a number for each channel already.
    """
    if group.explicit:
        return ("smooth",)
    if any(fold.op_type in _WEIGHTED for fold in group.writers):
        return ("cross_layer",)
    changed = [fold for fold in group.writers if fold.op_type not in _SUMS]
    return ("smooth",) if any(fold.widens for fold in changed) else ("smooth", "cross_layer")


def _quantized_terms(model: Model, plan: Plan) -> dict[str, QuantSpec]:
    """Return the format of the tensors that a sum reads quantized."""
    sums = {node.name for node in model.proto.graph.node if node.op_type in _SUMS}
    return {p.tensor: p.spec for p in plan.activations if any(use.node in sums for use in p.uses)}


class _Chooser:
    """Chooses the factors of one group after the other."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        methods: ChannelMethods,
        method_by_group: Mapping[str, Method],
        moments: dict[str, ChannelMoments],
    ) -> None:
        self._model, self._methods, self._moments = model, methods, moments
        self._method_by_group = method_by_group
        self._types = model.index.types
        self._slots = {use: placement.spec for placement in plan.placements for use in placement.uses}
        self._terms = _quantized_terms(model, plan)
        self._weights = {placement.tensor: placement.spec for placement in plan.weights}

    def _has_one_scale(self, fold: Fold) -> bool:
        spec = self._weights.get(fold.constant)
        return spec is not None and spec.granularity.axis is None

    def choose(self, group: ChannelGroup, exponents: NDArray[np.int64], steps: bool) -> EqualizedGroup:
        """Choose the factors of `group`, write them into `exponents` and describe them.

        Without `steps`, all channels go by one alpha.
        """
        count, classes = len(group.classes), group.classes
        observed = all(fold.summed in self._moments for fold in group.readers)
        # Scales by output channel follow the factors; the error of other weights depends on them.
        coarse = [fold for fold in group.writers if fold.summed and self._has_one_scale(fold)]
        made_by = _ranges_of_writers(group, self._model) if coarse or not observed else np.zeros(count)
        products = [self._product(fold, classes, made_by, SAMPLED) for fold in group.readers]
        writers = [self._product(fold, classes, made_by) for fold in coarse]
        method = self._method_by_group[group.name]
        fixed = self._methods.alpha if method == "smooth" else None
        alphas = ALPHAS if fixed is None else (fixed,)
        half = any(self._types[fold.constant] == TensorProto.FLOAT16 for fold in group.readers)
        most = _MOST_OCTAVES_OF_HALF if half else _MOST_OCTAVES
        steps = steps and fixed is None
        carried = [
            self._term(one) for one in group.carried if one.tensor in self._terms.keys() & self._moments
        ]
        choice = choose_factors(classes, products, writers, made_by, most, alphas, exponents, steps, carried)
        least = EXPECTED_GAIN_OF_NODE_DB if group.explicit else EXPECTED_GAIN_DB
        gain, why = choice.after_db - choice.before_db, ""
        if choice.alpha is None or gain < least:
            why = f"its expected gain is {gain:.1f} dB, below {least:g}"
            choice = Choice(np.zeros(count, np.int64), None, choice.before_db, choice.before_db)
        exponents[group.classes] = choice.exponents
        first = products[0]
        return EqualizedGroup(
            tensor=group.name,
            method=method,
            readers=tuple(dict.fromkeys(fold.constant for fold in group.readers)),
            alpha=choice.alpha,
            octaves=(int(choice.exponents.min()), int(choice.exponents.max())),
            before_db=choice.before_db,
            after_db=choice.after_db,
            inserted=group.explicit and not why,
            activations_before=_extremes(first.amax),
            activations_after=_extremes(np.ldexp(first.amax, exponents[first.ids])),
            why=why,
        )

    def _product(
        self,
        fold: Fold,
        classes: NDArray[np.int64],
        made_by: NDArray[np.float64],
        most: int | None = None,
    ) -> FactorProduct:
        """Return the product of `fold`, with some of its outputs if its weight has over `most` elements.

        Without feeds the ranges `made_by` stand for its input.
        """
        constant = _format(self._weights.get(fold.constant))
        weight, made = _sample_outputs(weight_array(self._model, fold.constant), fold, constant, most)
        if fold.summed in self._moments:
            known = self._moments[fold.summed]
            amax, square, live = known.amax, known.square, known.live
        else:
            mine = np.isin(fold.inputs, classes)
            amax = np.full(len(fold.inputs), made_by.max(initial=0.0))
            amax[mine] = made_by[np.searchsorted(classes, fold.inputs[mine])]
            square, live = np.square(amax / 3.0), np.ones(len(amax))
        activation = _activation_format(self._slots.get(Use(fold.node, 0)), fold.axis)
        passes = fold.summed in self._terms
        return FactorProduct(
            fold.inputs, amax, square, live, activation, weight, fold.layout, made, constant, passes
        )

    def _term(self, carried: Carried) -> FactorTensor:
        known = self._moments[carried.tensor]
        form = _activation_format(self._terms[carried.tensor], carried.axis)
        return FactorTensor(carried.inputs, known.amax, known.square, known.live, form)


def _sample_outputs(
    values: NDArray[Any], fold: Fold, constant: FactorFormat, most: int | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the weight of `fold`, and the variables of its outputs; some outputs if it is over `most`."""
    blocks = constant.granularity.block_shape or (1,) * values.ndim
    outputs = [axis for axis, size in enumerate(fold.layout.shape) if size == 1 and blocks[axis] == 1]
    axis = max(outputs, key=lambda axis: values.shape[axis], default=None)
    step = 1 if most is None else -(-values.size // most)
    if axis is None or step == 1:
        return np.asarray(values, np.float64), fold.plus
    taken = (slice(None),) * axis + (slice(None, None, min(step, values.shape[axis])),)
    made = fold.plus[taken] if fold.plus.ndim > axis and fold.plus.shape[axis] > 1 else fold.plus
    return np.asarray(values[taken], np.float64), made


def _extremes(amax: NDArray[np.float64]) -> tuple[float, float]:
    """Return the smallest and the largest magnitude of the channels that are not always 0."""
    live = amax[amax > 0.0]
    return (float(live.min()), float(live.max())) if live.size else (0.0, 0.0)


def _ranges_of_writers(group: ChannelGroup, model: Model) -> NDArray[np.float64]:
    """Return the largest magnitude of the constants that make each channel, each relative to its largest."""
    found = np.zeros(len(group.classes))
    weighted = any(fold.summed for fold in group.writers)
    for fold in group.writers:
        if weighted and not fold.summed:
            continue  # biases say little about the range of what they are added to
        values = np.abs(np.asarray(weight_array(model, fold.constant), np.float64))
        made = fold.plus
        if fold.op_type == "Div":
            made, values = fold.minus, 1.0 / np.maximum(values, np.finfo(np.float32).tiny)
        shape = np.broadcast_shapes(values.shape, made.shape)
        values, made = np.broadcast_to(values, shape), np.broadcast_to(made, shape)
        mine = np.isin(made, group.classes)
        largest = max(float(values.max(initial=0.0)), np.finfo(np.float32).tiny)
        np.maximum.at(found, np.searchsorted(group.classes, made[mine]), values[mine] / largest)
    return found


def _format(spec: QuantSpec | None) -> FactorFormat:
    return FactorFormat(None) if spec is None else FactorFormat(spec.qtype, spec.granularity)


def _activation_format(spec: QuantSpec | None, axis: int) -> FactorFormat:
    """Return the format of the channels alone, [C]: rows and samples have the largest of them."""
    if spec is None:
        return FactorFormat(None)
    granularity, qtype = spec.granularity, spec.qtype
    blocks = granularity.block_shape
    if blocks is not None:
        return FactorFormat(qtype, Granularity(0, blocks[axis]) if axis < len(blocks) else PER_TENSOR)
    if granularity.axis is None or granularity.axis not in (axis, axis - 4, -1):
        return FactorFormat(qtype)
    octaves = MOST_OCTAVES if spec.equalized else None
    return FactorFormat(qtype, Granularity(0, granularity.block_size), octaves)

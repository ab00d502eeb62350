"""`BIASES`: biases that make up for the mean error of rounded weights.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), section
4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onnxfq.calibration.statistics.input_kinds import ObservedInput
from onnxfq.calibration.statistics.input_means import ENDS, MEANS, InputMean
from onnxfq.calibration.statistics.kind import InputKey as Key
from onnxfq.calibration.weights import MatrixView
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.constants import weight_array
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy
from onnxfq.layers.weighted_layers import find_layers
from onnxfq.passes.replace_constants import BiasFinder, BiasPlace, shift_biases
from onnxfq.stages.calibrate import Calibrated
from onnxfq.targets.target import target_by_name


class _Target(NamedTuple):
    """A node whose outputs can be shifted."""

    node: str
    weight: str
    view: MatrixView
    key: Key
    place: BiasPlace


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no bias is corrected; empty if the recipe asks for it."""
    return "the recipe does not ask for it" if candidate.recipe.bias_correction == "none" else ""


def correct_biases(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Add (W - Wq) E[x] to the biases.

    W is the float weight, Wq its fake-quantized value, and E[x] the mean input of the float model over all
    positions and samples but those that prove, padding included. The means are sums of integers: order,
    batches and threads change no bit.

    Raises StatisticsError for an input of a layer that holds NaN or infinities.
    """
    session, options = candidate.session, judge.options
    if session.feeds is None:
        return Refusal("no data was given")
    if judge.accuracy is not None and judge.accuracy.max_drop is not None:
        return Refusal("the promised metric was measured without it")
    if not session.judged.deciding:
        return Refusal("no output comes from floats that are quantized")
    plan, encodings = candidate.plan, candidate.encodings
    with weights_stored_in(session.scratch):
        plan = Calibrated.of(plan, encodings).plan
        targets, left = find_targets(session.model, candidate.model, plan)
        details = describe_left(left)
        if not targets:
            return Refusal("no layer has a bias that can change", details)
        feeds = session.feeds.again(judge.proving)
        means = measure_means(session.model, [target.key for target in targets], feeds, options.threads)
        corrected = _shift(session.model, candidate.model, encodings, targets, means)
    return Proposal(replace(candidate, corrected=corrected), [f"{len(targets)} layers", *details])


_SHOWN = 6
"""Nodes and weights that lines name."""


def describe_left(left: Mapping[str, str]) -> list[str]:
    """Return a line for each of the first nodes and weights whose biases stay."""
    lines = [f"{name!r} stays: {why}" for name, why in list(left.items())[:_SHOWN]]
    return lines + ([f"and {len(left) - _SHOWN} more"] if len(left) > _SHOWN else [])


def find_targets(model: Model, rounded: Model, plan: Plan) -> tuple[list[_Target], dict[str, str]]:
    """Return the nodes whose bias can be corrected, and the reasons of all others.

    Args:
        model: the float model.
        rounded: the same with rounded weights.
        plan: of the model.
    """
    layers, left = find_layers(model, plan)
    finder = BiasFinder(rounded, plan, bool(target_by_name(plan.target).policy.bias_qtype))
    targets = []
    for layer in layers:
        weight = layer.placement.tensor
        groups, outputs, _ = layer.view.fold(weight_array(model, weight)).shape
        for one in layer.inputs:
            found = finder.find(one.node, one.slot, weight, groups * outputs)
            if isinstance(found, str):
                left[one.node] = found
            else:
                targets.append(_Target(one.node, weight, layer.view, (one.tensor, one.view), found))
    return targets, left


def measure_means(
    model: Model, keys: Sequence[Key], feeds: Iterable[Feed], threads: int
) -> Mapping[Key, InputMean]:
    """Return the mean inputs of layers, as exact sums of integers.

    The data is read twice: for the largest magnitude of each channel, and for the sums.

    Args:
        model: the float model.
        keys: the inputs.
        feeds: the data, which can be read several times.
        threads: cores to use, 0 for all.
    """
    keys = list(dict.fromkeys(keys))
    with closing(FloatRuns(model, {tensor for tensor, _ in keys}, threads, MOMENTS_MEMORY)) as runs:
        ends = runs.observe(ENDS, [ObservedInput(*key) for key in keys], feeds)
        return runs.observe(MEANS, [ObservedInput(*key, ends[key].ends) for key in keys], feeds)


def _shift(
    model: Model,
    rounded: Model,
    encodings: Encodings,
    targets: Sequence[_Target],
    means: Mapping[Key, InputMean],
) -> Model:
    """Return `rounded` with (W - Wq) E[x] added to its biases."""
    shifts = {}
    for one in targets:
        quantized = encodings[one.weight].fake_quantize(weight_array(rounded, one.weight))
        lost = weight_array(model, one.weight).astype(np.float64) - quantized.astype(np.float64)
        # Not a product of matrices: BLAS sums in an order that may depend on the machine's threads.
        shifts[one.place] = np.einsum("gok,gk->go", one.view.fold(lost), means[one.key].mean).reshape(-1)
    return shift_biases(rounded, shifts)


BIASES = Remedy(
    "biases", explain_unneeded, correct_biases, is_asked=lambda recipe: recipe.bias_correction != "none"
)

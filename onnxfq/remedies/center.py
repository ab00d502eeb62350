"""`CENTER`: dynamic activations in blocks lose their means, which carry no information.

The error of a block is a share of its energy, whatever its scale. A mean that every token has is energy too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.channel_moments import CHANNEL_MOMENTS
from onnxfq.calibration.statistics.input_kinds import ObservedInput
from onnxfq.calibration.statistics.input_means import MEANS
from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.documents.plan import Plan
from onnxfq.documents.rounding import NEAREST
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.constants import weight_array
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.judging.candidate import Candidate, build_candidate
from onnxfq.judging.judge import GAINED_SHARE, Judge, Proposal, Refusal, Remedy
from onnxfq.layers.weighted_layers import LayerInput, WeightedLayer, find_layers
from onnxfq.passes.center import CenteredProduct, CenteredTensor, center_tensors
from onnxfq.remedies.same_function import SAMPLES, explain_fixed_model, select_apart, with_model


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no activation is centered; empty if some are dynamic and in blocks."""
    if not _blocked(candidate.plan):
        return "no activation is dynamic and in blocks"
    return explain_fixed_model(candidate, judge)


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of two runs over some samples, and of another candidate."""
    work = judge.work
    runs = 2 * work.observe(min(SAMPLES, work.samples)) + work.observe() + work.calibrate
    if any(placement.rounding != NEAREST for placement in candidate.plan.weights):
        runs += work.round(candidate)
    return runs + judge.compare_choosing(1)


def center(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate without the means that make GAINED_SHARE of their tensor's energy."""
    session, feeds = candidate.session, select_apart(candidate, judge)
    with weights_stored_in(session.scratch):
        tensors = choose_tensors(session.model, candidate.plan, feeds, judge.options.threads)
        if not tensors:
            return Refusal(f"no mean makes {GAINED_SHARE:.0%} of its tensor's energy")
        judge.budget.spend(estimate(candidate, judge))
        centered = with_model(session, center_tensors(session.model, candidate.plan, tensors), feeds)
        recipe, equalization = candidate.recipe, candidate.equalization
        made = build_candidate(centered, recipe, judge.sources, judge.options, equalization)
    return Proposal(made, [f"{len(tensors)} activations without their mean"])


def choose_tensors(model: Model, plan: Plan, feeds: Sequence[Feed], threads: int) -> list[CenteredTensor]:
    """Return the activations in blocks whose mean makes GAINED_SHARE of their energy, with their products.

    Args:
        model: the float model.
        plan: of the model.
        feeds: for the means.
        threads: of the runs.
    """
    readers = _find_readers(model, plan)
    means = measure_means(model, list(readers), feeds, threads)
    return [_center(model, name, mean, readers[name]) for name, mean in means.items()]


_Readers = list[tuple[WeightedLayer, LayerInput]]


def _blocked(plan: Plan) -> dict[str, set[object]]:
    """Return the quantized readers of the dynamic activations in blocks."""
    return {
        p.tensor: set(p.uses)
        for p in plan.activations
        if p.spec.dynamic and p.spec.granularity.block_size is not None
    }


def _find_readers(model: Model, plan: Plan) -> dict[str, _Readers]:
    """Return the products that alone read an activation in blocks, by its name."""
    wanted = _blocked(plan)
    readers: defaultdict[str, _Readers] = defaultdict(list)
    for layer in find_layers(model, plan)[0]:
        for one in layer.inputs:
            rows = one.view.op_type == "MatMul" and one.view.axis == -1
            rows = rows or (one.view.op_type == "Gemm" and one.view.axis == 1)
            if rows and one.slot == 0 and one.tensor in wanted:
                readers[one.tensor].append((layer, one))
    return {
        name: found
        for name, found in readers.items()
        if wanted[name] == {(one.node, one.slot) for _, one in found}
    }


def measure_means(
    model: Model, tensors: Sequence[str], feeds: Sequence[Feed], threads: int
) -> dict[str, NDArray[np.float64]]:
    """Return the means of the channels of `tensors`, [C], that make GAINED_SHARE of their energy.

    Args:
        model: the float model.
        tensors: with channels along their last axis.
        feeds: the data.
        threads: of the runs.
    """
    inputs = [ObservedInput(name, InputView("MatMul", -1)) for name in tensors]
    if not inputs:
        return {}
    with closing(FloatRuns(model, tensors, threads, MOMENTS_MEMORY)) as runs:
        moments = runs.observe(CHANNEL_MOMENTS, inputs, feeds)
        ends = [ObservedInput(*key, np.stack([one.amax, one.amax])) for key, one in moments.items()]
        means = runs.observe(MEANS, ends, feeds)
    found = {key[0]: one.mean[0] for key, one in means.items()}
    energy = {key[0]: one.square.sum() for key, one in moments.items()}
    return {
        name: mean
        for name, mean in found.items()
        if np.square(mean).sum() >= GAINED_SHARE * energy[name] > 0.0
    }


def _center(model: Model, name: str, mean: NDArray[np.float64], readers: _Readers) -> CenteredTensor:
    """Return a tensor with its products and what they lose without the mean."""
    products = []
    rounded = mean.astype(weight_array(model, readers[0][0].placement.tensor).dtype)
    for layer, one in readers:
        weight = layer.placement.tensor
        matrix = layer.view.fold(weight_array(model, weight).astype(np.float64))[0]
        # Not a product of matrices: BLAS sums in an order that may depend on the machine's threads.
        lost = np.einsum("ok,k->o", matrix, rounded.astype(np.float64))
        products.append(CenteredProduct(one.node, weight, lost, rounded.dtype))
    return CenteredTensor(name, rounded, products)


CENTER = Remedy("center", explain_unneeded, center, is_free=True, estimate=estimate)

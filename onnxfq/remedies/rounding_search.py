"""`ROUNDING`: weights are rounded by moments where the measured outputs tell that they make the noise.

At 8 bits activations usually make most of it, and the nearest weights are as good as others at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import AUTO
from onnxfq.documents.scores import Evaluation
from onnxfq.graph.model import Model, list_graphs
from onnxfq.remedies.candidate import Candidate
from onnxfq.remedies.judge import Judge, Proposal, Refusal, Remedy
from onnxfq.remedies.round_weights import round_given
from onnxfq.stages.evaluate import compare_forms

METHOD = "gptq"
"""Rounding that takes the place of `auto`."""

LEAST_SHARE = 0.5
"""Share of an output's noise that weights make, from which on better weights can gain 3 dB."""

MOST_MULTIPLIES = 1 << 38
"""Multiply-adds of rounding that `quantize` does unasked: three seconds on two cores."""

LEAST_MULTIPLIES = 1 << 29
"""Multiply-adds in the 8 ms that even a small weight takes: a graph of 2,500 small layers took 20 s."""


def find_shares(evaluation: Evaluation | None) -> dict[str, float]:
    """Return the outputs of whose noise weights make LEAST_SHARE or more, with that share."""
    return {
        score.output: candidate.weight_shares[score.output]
        for candidate in ([] if evaluation is None else evaluation.candidates[:1])
        for score in candidate.judging
        if candidate.weight_shares.get(score.output, 0.0) >= LEAST_SHARE
    }


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why weights stay at nearest; empty if the recipe leaves it open and they make the noise."""
    if not _is_open(candidate.recipe):
        return "the recipe names the rounding of weights"
    if not candidate.recipe.simulation.rounding.startswith("half_"):
        return "the simulation would round them again"
    if judge.accuracy is not None or judge.sources.encodings is not None:
        return "an accuracy is promised, or encodings are given"
    if len(judge.kept) < 2 or judge.options.data.nonfinite != "stop":
        return "moments need two samples or more without NaN and infinities"
    return "" if find_shares(judge.first) else "activations make the noise"


def search_rounding(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with METHOD in place of `auto`; samples that prove give no moments."""
    session, options = candidate.session, judge.options
    evaluation = judge.first
    if candidate is not judge.start:
        form = candidate.simulate()
        evaluation = compare_forms(session, form, form, options, twins=True, feeds=judge.choosing)
    shares = find_shares(evaluation)
    details = [
        f"weights make {min(share, 1.0):.0%} of the noise of {name!r}" for name, share in shares.items()
    ]
    why = "activations make the noise" if not shares else _explain_cost(session.model, candidate.plan)
    if why:
        return Refusal(why, details)
    nearest = candidate.with_recipe(candidate.recipe.with_auto_rounding(METHOD), keep_rounding=False)
    rounding = round_given(
        session, nearest.plan, nearest.encodings, options, ray=judge.options.ray, held_out=judge.proving
    )
    if not rounding.layers:
        return Refusal(f"{METHOD} rounds none of them", details)
    return Proposal(nearest.rounded(rounding), [*details, f"{METHOD} rounds {len(rounding.layers)} weights"])


def _is_open(recipe: Recipe) -> bool:
    """Tell whether the recipe leaves the rounding of some weights to the judge."""
    schemes = ({"rounding": recipe.weights.rounding}, *(one.weights for one in recipe.overrides))
    return any(fields.get("rounding") == AUTO for fields in schemes)


def _explain_cost(model: Model, plan: Plan) -> str:
    """Return the reason not to round the weights of `plan` unasked; empty without one."""
    dims = {t.name: tuple(t.dims) for graph in list_graphs(model.proto.graph) for t in graph.initializer}
    multiplies = sum(_multiplies(dims[p.tensor], p) for p in plan.weights if p.tensor in dims)
    if multiplies <= MOST_MULTIPLIES:
        return ""
    return f"--rounding {METHOD} can reduce it, in {multiplies / 1e12:.1f} T multiply-adds"


def _multiplies(shape: Sequence[int], weight: Placement) -> int:
    """Return the work of rounding a weight in multiply-adds: moments, inverse, decomposition, handling."""
    outputs = shape[weight.spec.granularity.axis or 0] if weight.spec.granularity.block_size is None else 1
    size = math.prod(shape)
    inputs = size // max(outputs, 1) if outputs > 1 else max(shape, default=0)
    return LEAST_MULTIPLIES + 6 * inputs**3 + size * inputs


ROUNDING = Remedy("rounding", explain_unneeded, search_rounding)

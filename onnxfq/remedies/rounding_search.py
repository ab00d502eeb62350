"""`ROUNDING`: weights are rounded by moments of their inputs where the measured outputs gain by it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from onnxfq.calibration.weights import METHODS
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import AUTO
from onnxfq.documents.scores import Evaluation
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Bounded, Judge, Proposal, Refusal, Remedy, explain_limit
from onnxfq.layers.round_weights import Rounding, round_given
from onnxfq.numerics.metrics import ratio_db

ROUNDINGS = ("gptq", "qronos")
"""Roundings that take the place of `auto`, the likelier one last.

With int4 weights qronos has 1.2 to 2.6 dB more than gptq on six networks, and 0.4 to 0.6 dB less on three. It
also gains more by all samples, which round the result.
"""

FEW_BITS = 4
"""Bits of weights whose nearest numbers lose so much that they are rounded whatever it takes."""


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why weights stay at nearest; empty if the recipe and the data leave it open."""
    if not _is_open(candidate.recipe):
        return "the recipe names the rounding of weights"
    if not candidate.recipe.simulation.rounding.startswith("half_"):
        return "the simulation would round them again"
    if judge.sources.encodings is not None:
        return "encodings of another tool are used as they are"
    if len(judge.kept) < 2 or judge.options.data.nonfinite != "stop":
        return "moments need two samples or more without NaN and infinities"
    return "" if math.isfinite(judge.read_low(candidate)) else "an output is not finite"


def _noise_share(evaluation: Evaluation | None) -> float:
    """Return the largest share of an output's noise that weights make alone."""
    scores = None if evaluation is None else next(iter(evaluation.candidates), None)
    shares = [] if scores is None else [scores.weight_shares.get(one.output) for one in scores.judging]
    return max((share for share in shares if share is not None), default=0.0)


def _most_gain(candidate: Candidate, judge: Judge) -> float:
    """Return the gain in dB of weights without noise."""
    share = _noise_share(judge.first)
    return ratio_db(1.0, 1.0 - share) if candidate.plan.activations and share < 1.0 else math.inf


def search_rounding(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with the rounding of the best outputs; samples that judge give no moments."""
    methods, runs = _choose_methods(candidate, judge)
    made: list[Candidate] = []
    beside: Rounding | None = None
    for method in reversed(methods):
        nearest = candidate.with_recipe(_in_place_of_auto(candidate.recipe, method), keep_rounding=False)
        key = id(candidate.session), method
        if key in judge.rounded:  # activations of other ranges change nothing
            one = nearest.rounded_as(judge.rounded[key])
        elif beside is not None:
            one = nearest.rounded(beside)
        else:
            is_wanted = method != methods[0] and (id(candidate.session), methods[0]) not in judge.rounded
            found = _round(nearest, judge, runs, methods[0] if is_wanted else "")
            one, beside, runs = nearest.rounded(replace(found, beside=None)), found.beside, 0.0
        if not is_in_turn(one):
            judge.rounded[key] = one
        made.insert(0, one)
    proposals = [
        Proposal(one, [f"{method} rounds {len(one.rounding.layers)} weights"])
        for method, one in zip(methods, made, strict=True)
        if one.rounding is not None and one.rounding.layers
    ]
    if not proposals:
        return Refusal("no weight can be rounded by moments")
    best = len(proposals) - 1
    for at in reversed(range(best)):
        pair = proposals[best].candidate, proposals[at].candidate
        if judge.measure_gain(pair, judge.choosing).is_sure:
            best = at
    return proposals.pop(best)._replace(others=tuple(proposals))


def _round(nearest: Candidate, judge: Judge, runs: float, beside: str = "") -> Rounding:
    """Return the weights of a candidate, rounded as its recipe says, by samples that do not prove."""
    judge.budget.spend(runs)
    given = nearest.session, nearest.plan, nearest.encodings, judge.options
    return round_given(*given, ray=judge.options.ray, held_out=judge.proving, beside=beside)


def is_in_turn(candidate: Candidate) -> bool:
    """Tell whether weights are rounded by quantized inputs, so that other layers change them."""
    return any(p.rounding in METHODS and METHODS[p.rounding].sequential for p in candidate.plan.weights)


def unround(candidate: Candidate) -> Candidate:
    """Return `candidate` without weights that make up for what others lose; itself if it has none.

    They add noise next to layers in float. On yolox_nano the five layers that gain most take 11.6 dB to 8.9
    with them, and to 13.9 with weights that are rounded again.
    """
    if not is_in_turn(candidate):
        return candidate
    return candidate.with_recipe(candidate.recipe, keep_rounding=False)


def round_again(candidate: Candidate, judge: Judge) -> Candidate:
    """Return what became of `unround` with its weights rounded again."""
    if not is_in_turn(candidate):
        return candidate
    return candidate.rounded(_round(candidate, judge, judge.work.round_in_turn(candidate)))


def estimate(candidate: Candidate, judge: Judge) -> Bounded:
    """Return the runs of the methods; nothing for weights of few bits, which are always rounded."""
    methods, runs = _choose_methods(candidate, judge)
    if not methods:
        return Bounded(0.0, _most_gain(candidate, judge))
    runs = 0.0 if _has_few_bits(candidate) else runs + judge.compare_choosing(len(methods))
    is_bounded = not any(METHODS[method].sequential for method in _list_methods(candidate, judge))
    return Bounded(runs, _most_gain(candidate, judge) if is_bounded else math.inf)


def _choose_methods(candidate: Candidate, judge: Judge) -> tuple[list[str], float]:
    """Return the methods that the budget holds, the first at least, and their runs.

    The second gathers the moments of both. Weights of few bits have the time of low outputs for it.
    """
    methods = _list_methods(candidate, judge)
    runs = [_runs(candidate, judge, method) for method in methods]
    if len(methods) < 2:
        return methods, sum(runs)
    both = runs[-1] + judge.work.round(candidate)
    if _has_few_bits(candidate):
        is_able = both <= judge.work.allow(is_low=True)
    else:
        is_able = not judge.budget.explain_extra(both + judge.compare_choosing(len(methods)))
    return (methods, both) if is_able else (methods[:1], runs[0])


def _list_methods(candidate: Candidate, judge: Judge) -> list[str]:
    """Return the roundings that may gain: by inputs in float they change nothing but the noise of weights.

    A method that reads quantized inputs also takes back what these lose; it has no bound.
    """
    is_limited = bool(explain_limit(_most_gain(candidate, judge)))
    return [
        method
        for method in ROUNDINGS
        if (judge.options.ray is None if METHODS[method].sequential else not is_limited)
    ]


def _runs(candidate: Candidate, judge: Judge, method: str) -> float:
    """Return the runs of gathering moments, and of rounding by a method."""
    if METHODS[method].sequential:
        return judge.work.round_in_turn(candidate)
    return judge.work.observe() + judge.work.round(candidate)


def can_round_again(candidate: Candidate, judge: Judge) -> bool:
    """Tell whether all samples round the weights again: where the weights have few bits.

    On other data three networks with int4 weights gained 0.3 to 0.8 dB, two with int8 weights 0.0 and 0.1.
    """
    return judge.sources.moments is None and _has_few_bits(candidate)


def _has_few_bits(candidate: Candidate) -> bool:
    return any(placement.spec.qtype.bits <= FEW_BITS for placement in candidate.plan.weights)


def _is_open(recipe: Recipe) -> bool:
    """Tell whether the recipe leaves the rounding of some weights to the judge."""
    schemes = ({"rounding": recipe.weights.rounding}, *(one.weights for one in recipe.overrides))
    return any(fields.get("rounding") == AUTO for fields in schemes)


def _in_place_of_auto(recipe: Recipe, method: str) -> Recipe:
    """Return `recipe` with `method` where its rounding is `auto`."""

    def choose(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"rounding": method} if fields.get("rounding") == AUTO else fields

    overrides = (one.model_copy(update={"weights": choose(one.weights)}) for one in recipe.overrides)
    weights = choose({"rounding": recipe.weights.rounding})
    return recipe.override(weights=weights, overrides=tuple(overrides))


ROUNDING = Remedy("rounding", explain_unneeded, search_rounding, is_free=True, estimate=estimate)

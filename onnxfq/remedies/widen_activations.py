"""`WIDEN`: all activations in the wide format of a target whose hardware float layers would leave.

Formats of layers alone would need a conversion on each tensor between them.
"""

from __future__ import annotations

from onnxfq.documents.sensitivity import FLOAT
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.remedies.rounding_search import is_in_turn, round_again, unround
from onnxfq.targets.target import target_by_name


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why activations keep their format; empty if outputs are low, or if the fallback names it."""
    fixed = explain_fixed_formats(candidate, judge)
    return fixed or ("" if asks_for_all(candidate, judge) else judge.explain_sound(candidate))


def asks_for_all(candidate: Candidate, judge: Judge) -> bool:
    """Tell whether the wide format was named without a promise, which fewer tensors may keep."""
    return judge.accuracy is None and judge.wide == _find_wide(candidate)


def explain_fixed_formats(candidate: Candidate, judge: Judge) -> str:
    """Return why the activations of `candidate` cannot all get another format; empty if they can."""
    recipe, wide, asked = candidate.recipe, _find_wide(candidate), _find_asked(judge)
    scheme = recipe.activations
    if not wide:
        return "layers in float stay on the hardware"
    if scheme is None or scheme.qtype.bits >= qtype_by_name(wide).bits:
        return "no activation has fewer bits"
    if any((override.activations or {}) not in ({}, {"qtype": wide}) for override in recipe.overrides):
        return "the recipe names the formats of some layers"
    if judge.sources.encodings is not None:
        return "encodings of another tool are used as they are"
    return "" if {*asked} <= {FLOAT, wide} else f"layers that lose get {' or '.join(asked)}"


def widen(candidate: Candidate, judge: Judge) -> Candidate:
    """Return `candidate` with all activations in the wide format of its target.

    Weights that make up for what narrow activations lose are rounded again.
    """
    recipe = candidate.recipe.override(activations={"qtype": _find_wide(candidate)})
    return round_again(unround(candidate).with_recipe(recipe), judge)


def propose(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the widened candidate."""
    judge.budget.spend(judge.work.calibrate + judge.compare_choosing(1))
    made = widen(candidate, judge)
    return Proposal(made, [describe(candidate)], price=tell_price(candidate), is_sure=True)


def describe(candidate: Candidate) -> str:
    """Return what is done and why."""
    return f"all activations in {_find_wide(candidate)}; layers in float would leave the hardware"


def tell_price(candidate: Candidate) -> str:
    """Return the cost at run time: the share of the multiply-adds that take the wide format."""
    return f"{1.0:.1%} in {_find_wide(candidate)}"


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of ranges from known statistics, and of a comparison."""
    again = judge.work.round_in_turn(candidate) if is_in_turn(candidate) else 0.0
    return judge.work.calibrate + judge.compare_choosing(1) + again


def _find_wide(candidate: Candidate) -> str:
    return target_by_name(candidate.recipe.target).wide


def _find_asked(judge: Judge) -> tuple[str, ...]:
    """Return the formats that the user asked for by a fallback; FLOAT without one."""
    return (judge.wide,) if judge.accuracy is None else judge.accuracy.fallbacks


WIDEN = Remedy("widened", explain_unneeded, propose, estimate=estimate)

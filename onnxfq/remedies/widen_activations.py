"""`WIDEN`: all activations in the wide format of a target whose hardware float layers would leave.

Formats of layers alone would need a conversion on each tensor between them.
"""

from __future__ import annotations

from onnxfq.documents.sensitivity import FLOAT
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.remedies.candidate import Candidate
from onnxfq.remedies.judge import Judge, Proposal, Refusal, Remedy
from onnxfq.targets.target import target_by_name


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why activations keep their format; empty if outputs are low, or if the fallback names it."""
    asked = judge.wide if judge.accuracy is None else judge.accuracy.fallback
    is_asked = asked == target_by_name(candidate.recipe.target).wide
    return explain_fixed_formats(candidate, judge) or ("" if is_asked else judge.explain_sound(candidate))


def explain_fixed_formats(candidate: Candidate, judge: Judge) -> str:
    """Return why the activations of `candidate` cannot all get another format; empty if they can."""
    recipe = candidate.recipe
    wide, scheme = target_by_name(recipe.target).wide, recipe.activations
    asked = judge.wide if judge.accuracy is None else judge.accuracy.fallback
    if not wide:
        return "layers in float stay on the hardware"
    if scheme is None or scheme.qtype.bits >= qtype_by_name(wide).bits:
        return "no activation has fewer bits"
    if any(override.activations for override in recipe.overrides):
        return "the recipe names the formats of some layers"
    if judge.sources.encodings is not None:
        return "encodings of another tool are used as they are"
    return "" if asked in (FLOAT, wide) else f"layers that lose get {asked}"


def widen(candidate: Candidate) -> Candidate:
    """Return `candidate` with all activations in the wide format of its target."""
    recipe = candidate.recipe
    return candidate.with_recipe(recipe.override(activations={"qtype": target_by_name(recipe.target).wide}))


def propose(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the widened candidate."""
    judge.budget.spend(estimate(candidate, judge))
    return Proposal(widen(candidate), [describe(candidate)], price=tell_price(candidate))


def describe(candidate: Candidate) -> str:
    """Return what is done and why."""
    wide = target_by_name(candidate.recipe.target).wide
    return f"all activations in {wide}; layers in float would leave the hardware"


def tell_price(candidate: Candidate) -> str:
    """Return the cost at run time: the share of the multiply-adds that take the wide format."""
    return f"{1.0:.1%} in {target_by_name(candidate.recipe.target).wide}"


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the seconds of ranges from known statistics, and of a comparison."""
    return judge.work.calibrate + judge.compare_choosing(1)


WIDEN = Remedy("widened", explain_unneeded, propose, is_sure=True, estimate=estimate)

"""`ROTATE`: orthogonal matrices in the weights spread the channels that are larger than all others.

No node is new. A table of words that is the last product too becomes two, since one of them takes a gain up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from onnxfq.data import Feed
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError, ModelError
from onnxfq.execution.same_outputs import largest_difference
from onnxfq.graph.channels.rotations import Rotations, find_rotations
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.judging.candidate import Candidate, build_candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy, explain_gain
from onnxfq.passes.rotate import Rotated, rotate
from onnxfq.remedies.same_function import explain_fixed_model, select_apart, with_model
from onnxfq.runtime.float32_emulation import HALVES
from onnxfq.runtime.type_inference import with_run_ranks
from onnxfq.stages.inputs import QuantizeSession

EXACT = 1e-5
"""Largest difference of an output of float32, over its largest value, that sums in another order make."""

EXACT_OF_HALF = 0.02
"""The same of weights in a half type, which are rounded once more."""

PROVEN = 2
"""Samples on which the outputs are compared."""

NAMED = 3
"""Reasons that are named, of places that do not turn."""


def is_asked(recipe: Recipe) -> bool:
    """Tell whether `recipe` wants rotations that the outputs confirm, so that they have no budget."""
    return recipe.rotate == "auto"


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why nothing is turned; empty if the recipe asks for it, or an output is low."""
    if candidate.recipe.rotate == "always":
        return "the recipe names the rotation"
    why = explain_fixed_model(candidate, judge)
    return why or ("" if is_asked(candidate.recipe) else judge.explain_sound(candidate))


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of turning, of the proof, and of another candidate; none without a place."""
    if not candidate.recall(find_rotations, lambda: find_rotations(candidate.session.ranked)).places:
        return 0.0
    work = judge.work
    runs = 3 * work.opening + 2 * PROVEN * work.plain + work.observe() + work.calibrate
    if candidate.rounding is not None and candidate.rounding.tensors:
        runs += work.round(candidate)
    return runs + judge.compare_choosing(1)


def turn(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate of the model whose channels are turned wherever they can be, if it gains."""
    session, feeds = candidate.session, select_apart(candidate, judge, PROVEN)
    with weights_stored_in(session.scratch):
        rotations = _find(session, feeds)
        if not rotations.places:
            return Refusal("no channels can turn", _name_blocked(rotations))
        judge.budget.spend(estimate(candidate, judge))
        rotated = rotate(session.model, rotations, rotations.places)
        why = explain_difference(session.model, rotated.model, feeds, judge.options.threads)
        if why:
            return Refusal(why)
        turned = with_model(session, rotated.model, feeds)
        recipe, equalization = candidate.recipe, candidate.equalization
        made = build_candidate(turned, recipe, judge.sources, judge.options, equalization)
    # Alone too it has to gain: with others it may win by what these gain, and it may double a table.
    why, told = explain_gain(*judge.choose([candidate, made])), describe(rotations, rotated)
    return Refusal(why, told) if why else Proposal(made, told)


def rotate_named(session: QuantizeSession, recipe: Recipe, recorded: str) -> QuantizeSession:
    """Return `session` with the model that `recipe` wants turned without a trial.

    Args:
        session: the model, and the data that proves the outputs; without any none are compared.
        recipe: of the session.
        recorded: what is known of the model as it is, in words.

    Raises DataError for what is known of another model, ModelError for other outputs.
    """
    if recipe.rotate != "always":
        return session
    if recorded:
        raise DataError(
            f"recipe {recipe.name} turns channels (rotate: always), and {recorded} are given; give data "
            "alone, or rotate: none"
        )
    feeds = [] if session.feeds is None else session.feeds.select(PROVEN)
    with weights_stored_in(session.scratch):
        rotations = _find(session, feeds)
        rotated = rotate(session.model, rotations, rotations.places)
        why = explain_difference(session.model, rotated.model, feeds, 0)
    if why:
        raise ModelError(f"{session.model.source} cannot be rotated: {why}; give rotate: none")
    model = rotated.model if rotations.places else session.model
    told = describe(rotations, rotated) or ["no channels can turn"]
    notes = (*session.model.notes, *(f"rotated: {line}" for line in told))
    return with_model(session, replace(model, notes=notes), feeds)


def explain_difference(before: Model, after: Model, feeds: Sequence[Feed], threads: int) -> str:
    """Return why a model of the same function computes something else; empty if it does not."""
    found = largest_difference(before, after, feeds, threads) if feeds else 0.0
    halves = any(tensor.data_type in HALVES for tensor in before.proto.graph.initializer)
    most = EXACT_OF_HALF if halves else EXACT
    return "" if found <= most else f"an output differs by {found:.1g} of its largest value, {most:g} at most"


def describe(rotations: Rotations, rotated: Rotated) -> list[str]:
    """Return what turns, what it costs, and what does not turn, a line each."""
    sizes = Counter(len(place.channels) for place in rotations.places)
    lines = [f"{count} x {size} channels turned" for size, count in sizes.most_common()]
    if rotated.copied:
        lines.append(f"constants whose readers differ become two: {rotated.copied:,} bytes more in float")
    return lines + _name_blocked(rotations)


def _find(session: QuantizeSession, feeds: Sequence[Feed]) -> Rotations:
    """Return what may turn, with ranks that only a run can infer."""
    ranked = with_run_ranks(session.ranked, feeds[0], everywhere=True) if feeds else session.ranked
    return find_rotations(ranked)


def _name_blocked(rotations: Rotations) -> list[str]:
    """Return the first reasons why channels that products sum over do not turn."""
    by_reason = {why: tensor for tensor, why in reversed(rotations.blocked.items())}
    lines = [f"{tensor!r} does not turn: {why}" for why, tensor in reversed(by_reason.items())]
    rest = len(lines) - NAMED
    return lines[:NAMED] + ([f"{rest} more reasons"] if rest > 0 else [])


ROTATE = Remedy("rotate", explain_unneeded, turn, is_asked=is_asked, is_free=True, estimate=estimate)

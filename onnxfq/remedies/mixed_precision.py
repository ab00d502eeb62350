"""`PROTECT` and `keep_target`: layers in float, so that the worst noise is gone or a target is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnxfq.choices import RANKING_FEEDS
from onnxfq.data import Feed
from onnxfq.data.stream import StreamSamples, count_runs
from onnxfq.documents.scores import LASTING
from onnxfq.documents.sensitivity import FLOAT, Sensitivity
from onnxfq.errors import ModelError, RecipeError
from onnxfq.execution.toggled_segments import count_segments
from onnxfq.judging.accuracy_target import Aim, MetricAim, PromiseProof, SqnrAim, open_aim
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import WIDE_FORMAT, Judge, Proposal, Refusal, Remedy, explain_gain
from onnxfq.judging.task_metric import TaskMetric
from onnxfq.layers.quantizer_toggles import QuantizerToggles, first_feeds
from onnxfq.numerics.windows import WINDOW
from onnxfq.remedies.fit_size import fit_size
from onnxfq.remedies.mixes import Mixes, apply, open_search, with_remedy
from onnxfq.remedies.rounding_search import is_in_turn, round_again, unround
from onnxfq.remedies.runtime_cure import cure_promised, prove_built
from onnxfq.remedies.runtime_proof import name_runtime, open_in_runtime
from onnxfq.remedies.sensitivity import MEASURED, rank_groups
from onnxfq.remedies.widen_activations import explain_fixed_formats
from onnxfq.remedies.widen_sums import list_wider
from onnxfq.targets.target import target_by_name

PRICE_PER_DB = 0.01
"""Share of the time that a dB of the outputs is worth: layers that PROTECT leaves in float gain more."""


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no layer is left in float; empty if an output is low and no target is given.

    A wide format that costs no time is tried at any accuracy.
    """
    if judge.accuracy is not None:
        return "an accuracy is promised"
    if judge.wide == FLOAT:
        return judge.explain_sound(candidate)
    if judge.wide == target_by_name(candidate.recipe.target).wide:
        return f"all activations take {judge.wide} at once"
    if candidate.recipe.activations is None:
        return "no activation is quantized"
    return "encodings of another tool are used as they are" if judge.sources.encodings is not None else ""


def leave_layers(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with a wide format, or float, for the groups that cost its outputs most.

    Groups stay in float as long as they gain a dB for less than PRICE_PER_DB, up to the wanted SQNR. With a
    wide format, float comes only if the outputs are still low.
    """
    start = unround(candidate)
    toggles = start.open_toggles(judge.options)
    if not toggles.groups:
        return Refusal("no quantizer can be switched off")
    # Later remedies keep their time.
    count = 1 if judge.budget.explain_extra(_runs(candidate, judge, RANKING_FEEDS)) else RANKING_FEEDS
    judge.budget.spend(_runs(candidate, judge, count))
    feeds = first_feeds(judge.choosing, count)
    is_cut = isinstance(judge.choosing, StreamSamples) and count == 1
    ranking = rank_groups(toggles, feeds, candidate.recipe)
    if judge.wide != FLOAT:
        widened = _widen_layers(candidate, start, judge, ranking, feeds, judge.wide)
        if widened is not None:
            return widened
        if judge.explain_sound(candidate):
            return Refusal(f"no layer gains enough in {judge.wide}")
    verdict = _leave_in_float(candidate, start, judge, ranking)
    offer = _offer_format(candidate, start, judge, ranking, feeds)
    cut = [f"layers were ranked by {WINDOW} feeds in a row: whole recordings are beyond the budget"]
    return verdict._replace(details=[*verdict.details, *(cut if is_cut else ()), *offer])


def _leave_in_float(
    candidate: Candidate, start: Candidate, judge: Judge, ranking: Sensitivity
) -> Proposal | Refusal:
    assert judge.least is not None
    made, (before_db,) = candidate, judge.choose([candidate])
    lack = max(judge.least - before_db, 0.0)
    enough = 10 ** (-(ranking.sqnr_db + lack) / 10)
    mixes = Mixes.unmeasured(ranking)
    formats = mixes.list_formats(mixes.find_worthwhile(PRICE_PER_DB, lack * PRICE_PER_DB, enough))
    if formats:
        made = _apply(start, judge, ranking, formats)
    (reached_db,) = judge.choose([made])
    fields: dict[str, Any] = {"measure": SqnrAim.measure, "wanted": judge.least, "before": before_db}
    if explain_gain(before_db, reached_db):
        choice = with_remedy(ranking, {}, mixes, **fields, reached=before_db)
        return Refusal("few layers in float would not change that", choice.remedy_lines(), choice)
    choice = with_remedy(ranking, formats, mixes, **fields, reached=reached_db)
    return Proposal(made, choice.remedy_lines(), choice, is_sure=True)


def _apply(start: Candidate, judge: Judge, ranking: Sensitivity, formats: Mapping[int, str]) -> Candidate:
    """Return what was `unround` with other formats for groups, and with its weights rounded again."""
    return round_again(apply(start, judge, ranking, formats), judge)


def _widen_layers(
    candidate: Candidate,
    start: Candidate,
    judge: Judge,
    ranking: Sensitivity,
    feeds: Sequence[Feed],
    qtype: str,
) -> Proposal | None:
    """Return the candidate with `qtype` for the fewest groups that gain all that it can gain.

    None if they gain too little on the samples that choose.
    """
    judge.budget.spend(judge.work.calibrate + _runs(candidate, judge, len(feeds)))
    mixes = Mixes.measure(start, judge, ranking, feeds, [qtype])
    choices = dict.fromkeys((mixes.find_fewest(), int(mixes.predicted.argmin())))
    tried = [formats for formats in map(mixes.list_formats, choices) if formats]
    made = [_apply(start, judge, ranking, formats) for formats in tried]
    before_db, *scores_db = judge.choose([candidate, *made])
    best_db = max(scores_db, default=-math.inf)
    if explain_gain(before_db, best_db):
        return None
    formats, made_one, score_db = next(
        one for one in zip(tried, made, scores_db, strict=True) if explain_gain(one[2], best_db)
    )
    fields: dict[str, Any] = {"measure": SqnrAim.measure, "wanted": before_db, "before": before_db}
    choice = with_remedy(ranking, formats, mixes, **fields, reached=score_db)
    return Proposal(made_one, choice.remedy_lines(), choice, is_sure=True)


def _offer_format(
    candidate: Candidate, start: Candidate, judge: Judge, ranking: Sensitivity, feeds: Sequence[Feed]
) -> list[str]:
    """Return a line with the gain of WIDE_FORMAT where the target has it on some GPUs and nobody chose."""
    least = target_by_name(candidate.recipe.target).capabilities.get(WIDE_FORMAT)
    scheme = candidate.recipe.activations
    if least is None or judge.wide != FLOAT or scheme is None or scheme.qtype.is_float:
        return []
    rounding = judge.work.round_in_turn(candidate) if is_in_turn(candidate) else 0.0
    runs = _runs(candidate, judge, len(feeds)) + 2 * (judge.compare_choosing(1) + rounding)
    if judge.budget.explain_refusal(runs):
        return []
    widened = _widen_layers(candidate, start, judge, ranking, feeds, WIDE_FORMAT)
    if widened is None:
        return []
    assert isinstance(widened.evidence, Sensitivity) and widened.evidence.remedy is not None
    gain = judge.prove_gain(candidate, widened.candidate, is_sure=True)
    if gain.explain_refusal():
        return []
    return [
        f"--gpu SM{least} (that GPU or later) would give {len(widened.evidence.remedy.kept)} of "
        f"{len(ranking.groups)} groups {WIDE_FORMAT}: {gain.before:.1f} -> about {gain.after:.1f} dB"
        f", a gain of {gain}"
    ]


def keep_target(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with the cheapest groups in float that keep the target, if it does not itself.

    The lower end of the interval keeps it. All of the data proves `candidate`. For others a part of it
    chooses, and the other part proves.

    Raises DataError without data, RecipeError if the target cannot be kept, with the best that was reached.
    """
    target, options = judge.accuracy, judge.options
    assert target is not None
    if target.fits_size:
        return fit_size(candidate, judge, target)
    candidate = cure_promised(judge, candidate)
    session, toggles = candidate.session, candidate.open_toggles(options)
    task = None
    if target.max_drop is not None:
        task = TaskMetric(target.metric, target.labels, toggles, session, options.data.limit is not None)
    aim = open_aim(target, session.kept, task, session.judged)
    aim.measure += name_runtime(candidate)
    proven = best = _prove(aim, judge, candidate, toggles)
    if best.value >= aim.wanted:
        return Refusal(f"{best.text} {aim.measure} without it", is_needed=False, answer=best.answer)
    for wider in () if explain_fixed_formats(candidate, judge) else list_wider(candidate, judge):
        proof = _prove(aim, judge, wider.candidate)
        if proof.value >= aim.wanted:
            told = f"{wider.details[0]}: {proven.text} -> {proof.text} {aim.measure}"
            return wider._replace(details=[told], answer=proof.answer)
        best = max(best, proof, key=lambda one: one.value)
    if target.fallbacks == (target_by_name(candidate.recipe.target).wide,):
        raise RecipeError(
            f"recipe {candidate.recipe.name} cannot keep {aim.wanted:g} {aim.measure}: {best.text} was "
            f"reached, and all activations take {target.fallback} or none; ask for less, or leave out "
            "--fallback"
        )
    start, feeds = unround(candidate), first_feeds(session.kept, RANKING_FEEDS)
    if start is not candidate:
        toggles = start.open_toggles(options)
    ranking, last, count = rank_groups(toggles, feeds, candidate.recipe), candidate, 0
    is_known = isinstance(aim, MetricAim) and len(target.fallbacks) == 1  # noise tells nothing of a metric
    if is_known:
        mixes = Mixes.unmeasured(ranking, target.fallbacks)
    else:
        mixes = Mixes.measure(start, judge, ranking, feeds, target.fallbacks)
    search, reached = open_search(mixes, aim), proven.value
    while formats := search.choose(reached):
        count = len(formats)
        try:
            last = _apply(start, judge, ranking, formats)
        except ModelError:  # nothing is left to quantize
            break
        if isinstance(aim, MetricAim):
            board = last.open_toggles(options)
            if aim.choose(board, board.everything) < aim.wanted:
                continue
        proof = _prove(aim, judge, last)
        if proof.value >= aim.wanted:
            fields: dict[str, Any] = {"measure": aim.measure, "wanted": aim.wanted, "before": proven.value}
            traced = None if is_known else mixes
            choice = with_remedy(ranking, formats, traced, **fields, reached=proof.value)
            return Proposal(last, choice.remedy_lines(), choice, answer=proof.answer)
        best, reached = max(best, proof, key=lambda one: one.value), proof.value
    step = f"{target.fallback} helps none of the"
    if count:
        step = f"the last step changes {count} of {len(ranking.groups)}"
    raise RecipeError(
        f"recipe {candidate.recipe.name} cannot keep {aim.wanted:g} {aim.measure}: {best.text} was "
        f"reached{_explain_drift(aim, judge, last)}, and {step} groups of layers; ask for less, take a "
        "recipe with wider formats, or give more data"
    )


def _explain_drift(aim: Aim, judge: Judge, candidate: Candidate) -> str:
    """Return how the error of `candidate` grows along a stream, for a promise that is not kept; or ""."""
    worst = judge.prove([candidate], aim.proving)[0].drifting if isinstance(aim, SqnrAim) else None
    if worst is None:
        return ""
    return f", by its growth over {LASTING} times the longest recording: {worst.output!r} {worst.drift}"


def _prove(
    aim: Aim,
    judge: Judge,
    candidate: Candidate,
    toggles: QuantizerToggles | None = None,
) -> PromiseProof:
    """Return the value of `candidate` on the part of the data that proves; on all of it with `toggles`.

    A metric runs in the runtime of the target, which else may only lower an SQNR in simulation.
    """
    if isinstance(aim, SqnrAim):
        proof = prove_built(judge, candidate)
        if proof.runtime_db == -math.inf:
            return PromiseProof(-math.inf, proof.difference)
        chosen_db = judge.score([candidate], aim.choosing)[0]
        chosen = PromiseProof(chosen_db, f"{chosen_db:.4g} on the samples that choose,")
        return min(judge.prove_promise(candidate, proof.losses), chosen, key=lambda one: one.value)
    assert isinstance(aim, MetricAim)
    run = open_in_runtime(candidate, judge)
    if run is None:
        board = toggles or candidate.open_toggles(judge.options)
        run = board.set(board.everything)
    return aim.prove(run, (1,) if toggles is None else (0, 1))


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of measuring each group alone on one sample.

    Weights that are rounded in turn had the time for it once, and have it again.
    """
    return _runs(candidate, judge, 1)


def _runs(candidate: Candidate, judge: Judge, feeds: int) -> float:
    """Return the runs of measuring each group alone, from its segment on, and whole models."""
    plan, work = candidate.plan, judge.work
    choosing = judge.split.choosing
    groups = max(len(plan.weights), len(plan.activations))
    segments = 1 if isinstance(choosing, StreamSamples) else count_segments(len(plan.placements))
    runs = groups * (segments + 1) / (2 * segments) + 1 + MEASURED  # if segments cost the same
    ranking = count_runs(first_feeds(choosing, feeds)) if choosing else 0
    whole = runs * ranking + 2 * count_runs(choosing)
    return 4 * work.opening + whole * work.quantized


PROTECT = Remedy("protected", explain_unneeded, leave_layers, estimate=estimate)

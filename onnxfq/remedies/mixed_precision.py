"""`PROTECT` and `keep_target`: layers in float, so that the worst noise is gone or a target is kept."""

from __future__ import annotations

import math

from onnxfq.choices import RANKING_FEEDS
from onnxfq.data.stream import StreamSamples, count_runs
from onnxfq.documents.override import Override
from onnxfq.documents.plan import Plan
from onnxfq.documents.promise import Promised
from onnxfq.documents.scores import LASTING
from onnxfq.documents.sensitivity import FLOAT, GroupRemedy, Sensitivity
from onnxfq.errors import RecipeError
from onnxfq.execution.toggled_segments import count_segments
from onnxfq.graph.model import Model
from onnxfq.judging.accuracy_target import AccuracyTarget, Aim, MetricAim, PromiseProof, SqnrAim, open_aim
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import WIDE_FORMAT, Judge, Proposal, Refusal, Remedy, explain_gain
from onnxfq.judging.task_metric import TaskMetric
from onnxfq.layers.quantizer_toggles import QuantizerToggles, first_feeds
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.windows import WINDOW
from onnxfq.remedies.forms import build_forms
from onnxfq.remedies.runtime_cure import cure_promised, prove_candidate
from onnxfq.remedies.runtime_proof import RuntimeModel, name_runtime, open_in_runtime
from onnxfq.remedies.sensitivity import MEASURED, find_remedy, next_count, rank_groups
from onnxfq.remedies.widen_activations import explain_fixed_formats
from onnxfq.remedies.widen_sums import list_wider
from onnxfq.support.clock import Clock
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import target_by_name

PRICE_PER_DB = 0.01
"""Share of the time that PROTECT may leave in float for each dB that the outputs lack."""

WORTHWHILE_DB = 3.0
"""Gain in dB for which groups stay in float although the wanted SQNR is not reached: half of the noise."""

NEARLY_DB = 0.5
"""Loss in dB against all groups that may stay in float, for which some of them are quantized nevertheless."""

TRIED = 6
"""Numbers of groups in float that are measured on the samples that choose, as on yolox and a MobileNetV3."""

OFFERED = 4
"""Factor from one number of groups to the next where a format is only offered; where it is given, 2."""

_ROUNDS = 16
"""Attempts, each with more groups, before the target counts as broken."""


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

    The cheapest groups that restore the wanted SQNR stay in float, up to PRICE_PER_DB for each missing dB. If
    these are not enough, the fewest stay that gain WORTHWHILE_DB, and NEARLY_DB less than all of them. With a
    wide format, float comes only if the outputs are still low.
    """
    toggles = candidate.open_toggles(judge.options)
    if not toggles.groups:
        return Refusal("no quantizer can be switched off")
    # Later remedies keep their time.
    count = 1 if judge.budget.explain_extra(_runs(candidate, judge, RANKING_FEEDS)) else RANKING_FEEDS
    judge.budget.spend(_runs(candidate, judge, count))
    feeds = first_feeds(judge.choosing, count)
    is_cut = isinstance(judge.choosing, StreamSamples) and count == 1
    ranking = rank_groups(toggles, feeds, candidate.recipe)
    if judge.wide != FLOAT:
        widened = _widen_layers(candidate, judge, ranking, judge.wide)
        if widened is not None:
            return widened
        if judge.explain_sound(candidate):
            return Refusal(f"no layer gains enough in {judge.wide}")
    verdict = _leave_in_float(candidate, judge, toggles, ranking)
    offer = _offer_format(candidate, judge, ranking)
    cut = [f"layers were ranked by {WINDOW} feeds in a row: whole recordings are beyond the budget"]
    return verdict._replace(details=[*verdict.details, *(cut if is_cut else ()), *offer])


def _leave_in_float(
    candidate: Candidate, judge: Judge, toggles: QuantizerToggles, ranking: Sensitivity
) -> Proposal | Refusal:
    assert judge.least is not None
    aim = SqnrAim(judge.least, judge.choosing, judge.choosing)
    chosen_db = aim.choose(toggles, toggles.everything)
    affordable = _affordable(ranking, PRICE_PER_DB * max(judge.least - chosen_db, 0.0))
    known = {0: chosen_db}
    names = {ranking.groups[at].tensors for at in affordable}
    everything = [group for group in toggles.groups if group.tensors in names]
    most_db = aim.choose(toggles, toggles.enable(everything, on=False))
    enough_db = round(max(chosen_db + WORTHWHILE_DB, most_db - NEARLY_DB), 2)  # as it is printed
    for wanted in (judge.least, enough_db):
        aim.wanted = wanted
        count = next_count(0, len(affordable)) if chosen_db >= wanted else 0
        choice = find_remedy(
            toggles, ranking, aim, least=count, among=affordable, known=known, fallback=FLOAT
        )
        assert choice.remedy is not None
        if choice.remedy.is_kept and choice.remedy.kept:
            made = candidate.with_overrides(ranking.float_overrides(choice.remedy.kept), None, judge.options)
            return Proposal(made, choice.remedy_lines(), choice, is_sure=True)
    none = GroupRemedy(measure=aim.measure, wanted=judge.least, reached=chosen_db, before=chosen_db, kept=())
    choice = ranking.model_copy(update={"remedy": none})
    return Refusal("few layers in float would not change that", choice.remedy_lines(), choice)


def _widen_layers(
    candidate: Candidate, judge: Judge, ranking: Sensitivity, qtype: str, step: int = 2
) -> Proposal | None:
    """Return the candidate with `qtype` for the fewest groups of most noise that gain all that it can gain.

    Numbers of groups are tried from 1 on, each `step` times the one before. None if all gain too little on
    the samples that choose.
    """
    (before_db,) = judge.choose([candidate])
    order, count = range(len(ranking.groups)), 1
    found: list[tuple[float, int, Candidate]] = []
    while count <= len(order):
        runs = judge.work.calibrate * count / len(order)  # the ranges of all others are known
        if found and judge.budget.explain_refusal(runs + judge.compare_choosing(1)):
            break
        judge.budget.spend(runs)
        made = candidate.with_overrides((ranking.override(order[:count], qtype),), None, judge.options)
        found.append((judge.choose([made])[0], count, made))
        count *= step
    best_db = max(score_db for score_db, *_ in found)
    score_db, count, made = next(one for one in found if explain_gain(one[0], best_db))
    if explain_gain(before_db, score_db):
        return None
    remedy = GroupRemedy(
        measure=SqnrAim.measure,
        wanted=before_db,
        reached=score_db,
        before=before_db,
        kept=tuple(order[:count]),
        multiplies=ranking.multiplies(order[:count]),
        fallback=qtype,
    )
    choice = ranking.model_copy(update={"remedy": remedy})
    return Proposal(made, choice.remedy_lines(), choice, is_sure=True)


def _offer_format(candidate: Candidate, judge: Judge, ranking: Sensitivity) -> list[str]:
    """Return a line with the gain of WIDE_FORMAT where the target has it on some GPUs and nobody chose."""
    least = target_by_name(candidate.recipe.target).capabilities.get(WIDE_FORMAT)
    scheme = candidate.recipe.activations
    if least is None or judge.wide != FLOAT or scheme is None or scheme.qtype.is_float:
        return []
    if judge.budget.explain_refusal(2 * judge.compare_choosing(1)):
        return []
    widened = _widen_layers(candidate, judge, ranking, WIDE_FORMAT, OFFERED)
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
    if target.weight_bits is None:
        candidate = cure_promised(judge, candidate)
    session, toggles = candidate.session, candidate.open_toggles(options)
    if target.weight_bits is not None:
        return _widen_weights(candidate, judge, toggles, target)
    task = None
    if target.max_drop is not None:
        task = TaskMetric(target.metric, target.labels, toggles, session, options.data.limit is not None)
    aim = open_aim(target, session.kept, task, session.judged)
    aim.measure += name_runtime(candidate)
    written = None if task is None else open_in_runtime(candidate, judge)
    chosen = _choose(aim, toggles, written)
    proven = best = _prove(aim, judge, candidate, toggles)
    if isinstance(aim, SqnrAim) and chosen < best.value:
        best = PromiseProof(chosen, f"{chosen:.4g} on the samples that choose,")
    if best.value >= aim.wanted:
        return Refusal(f"{best.text} {aim.measure} without it", is_needed=False, answer=best.answer)
    for wider in () if explain_fixed_formats(candidate, judge) else list_wider(candidate, judge):
        proof = _prove(aim, judge, wider.candidate)
        if proof.value >= aim.wanted:
            return wider._replace(
                details=[f"{wider.details[0]}: {proven.text} -> {proof.text} {aim.measure}"],
                answer=proof.answer,
            )
        best = max(best, proof, key=lambda one: one.value)
    if target.fallback == target_by_name(candidate.recipe.target).wide:
        raise RecipeError(
            f"recipe {candidate.recipe.name} cannot keep {aim.wanted:g} {aim.measure}: {best.text} was "
            f"reached, and all activations take {target.fallback} or none; ask for less, or leave out "
            "--fallback"
        )
    ranking = rank_groups(toggles, first_feeds(session.kept, RANKING_FEEDS), candidate.recipe)
    most, known, last = len(ranking.groups), {0: chosen}, candidate
    count = next_count(0, most) if chosen >= aim.wanted else 0  # the part that proves alone may lack it
    wanted = aim.wanted

    def find(least: int) -> GroupRemedy:
        found = find_remedy(toggles, ranking, aim, least=least, known=known, fallback=target.fallback).remedy
        assert found is not None
        return found

    for _ in range(_ROUNDS):
        remedy = find(count)
        if len(remedy.kept) == most and aim.wanted > wanted:  # nothing has that lead: half of the rest
            aim.wanted = wanted
            remedy = find((count + most) // 2)
        count = len(remedy.kept)
        if not count or (count == most and target.fallback == FLOAT):
            break
        choice = ranking.model_copy(update={"remedy": remedy})
        made = last = candidate.with_overrides(_overrides(choice), judge.sources.encodings, options)
        proof = _prove(aim, judge, made)
        if proof.value >= wanted:
            changes = {"wanted": wanted, "before": proven.value, "reached": proof.value}
            choice = ranking.model_copy(update={"remedy": remedy.model_copy(update=changes)})
            return Proposal(made, choice.remedy_lines(), choice, answer=proof.answer)
        best = max(best, proof, key=lambda one: one.value)
        if count == most:
            break
        lead = known[count] - proof.value
        if math.isfinite(lead):  # what chooses is better than the promise, as it is better than what proves
            aim.wanted = max(aim.wanted, wanted + lead / 2)
        count = next_count(count, most)
    raise RecipeError(
        f"recipe {candidate.recipe.name} cannot keep {wanted:g} {aim.measure}: {best.text} was "
        f"reached{_explain_drift(aim, judge, last)}, and the next step would change {count} of {most} groups "
        "of layers; ask for less, take a recipe with wider formats, or give more data"
    )


def _explain_drift(aim: Aim, judge: Judge, candidate: Candidate) -> str:
    """Return how the error of `candidate` grows along a stream, for a promise that is not kept; or ""."""
    worst = judge.prove([candidate], aim.proving)[0].drifting if isinstance(aim, SqnrAim) else None
    if worst is None:
        return ""
    return f", by its growth over {LASTING} times the longest recording: {worst.output!r} {worst.drift}"


def _overrides(choice: Sensitivity) -> tuple[Override, ...]:
    remedy = choice.remedy
    assert remedy is not None
    if remedy.fallback == FLOAT:
        return choice.float_overrides(remedy.kept)
    return (choice.override(remedy.kept, RECIPES.get(remedy.fallback, remedy.fallback)),)


def _choose(aim: Aim, toggles: QuantizerToggles, written: RuntimeModel | None) -> float:
    """Return the value with all quantizers on the part of the data that chooses."""
    if isinstance(aim, MetricAim) and written is not None:
        return aim.choose(written, toggles.everything)
    return aim.choose(toggles, toggles.everything)


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
        proof = prove_candidate(judge, candidate, build_forms(candidate, judge.options, Clock()))
        if proof.runtime_db == -math.inf:
            return PromiseProof(-math.inf, proof.difference)
        return judge.prove_promise(candidate, proof.losses)
    assert isinstance(aim, MetricAim)
    written = open_in_runtime(candidate, judge)
    halves = (1,) if toggles is None else (0, 1)
    toggles = toggles or candidate.open_toggles(judge.options)
    return aim.prove(written or toggles, toggles.everything, halves)


def _widen_weights(
    candidate: Candidate, judge: Judge, toggles: QuantizerToggles, target: AccuracyTarget
) -> Proposal:
    """Return the candidate with wider formats for the groups that gain most for their bits, as many as fit.

    Raises RecipeError if the weights have more bits on average than promised.
    """
    limit, fallback = target.weight_bits, target.fallback
    assert limit is not None
    wide = (RECIPES[fallback].weights.qtype if fallback in RECIPES else qtype_by_name(fallback)).bits
    sizes = _weight_sizes(candidate.session.model, candidate.plan)
    total, used = sum(n for n, _ in sizes.values()), sum(n * bits for n, bits in sizes.values())
    if used > limit * total:
        raise RecipeError(
            f"recipe {candidate.recipe.name} gives weights {used / total:.4g} bits on average, and at most "
            f"{limit:g} were promised; take a recipe with fewer bits"
        )
    aim = SqnrAim(math.inf, *judge.split[:2])
    feeds = first_feeds(aim.choosing, RANKING_FEEDS)
    ranking = rank_groups(toggles, feeds, candidate.recipe)
    added = [
        sum(n * max(0, wide - bits) for n, bits in (sizes.get(name, (0, wide)) for name in group.tensors))
        for group in ranking.groups
    ]
    places: list[int] = []
    for at in sorted(range(len(added)), key=lambda at: -ranking.groups[at].noise / max(added[at], 1)):
        if added[at] and used + added[at] <= limit * total:
            places, used = [*places, at], used + added[at]
    made = candidate
    if places:
        made = candidate.with_overrides(
            (ranking.override(places, RECIPES.get(fallback, fallback)),),
            judge.sources.encodings,
            judge.options,
        )
    remedy = GroupRemedy(
        measure=aim.measure,
        wanted=0.0,
        reached=judge.score([made], aim.proving)[0],
        before=judge.score([candidate], aim.proving)[0],
        kept=tuple(places),
        multiplies=ranking.multiplies(places),
        fallback=fallback,
        weight_bits=used / total,
    )
    choice = ranking.model_copy(update={"remedy": remedy})
    answer = Promised(measure="bits of a weight", allowed=limit, value=used / total, samples=0)
    return Proposal(made, choice.remedy_lines(), choice, answer=answer)


def _weight_sizes(model: Model, plan: Plan) -> dict[str, tuple[int, int]]:
    """Return the number of elements and the bits of each by quantized weight."""
    counts = {name: math.prod(t.dims) for name, t in model.constants.items()}
    return {p.tensor: (counts[p.tensor], p.spec.qtype.bits) for p in plan.weights if p.tensor in counts}


def _affordable(ranking: Sensitivity, most: float) -> list[int]:
    """Return groups that together cost at most `most` of the time, the best for its price first."""
    taken: list[int] = []
    spent = 0.0
    for at in ranking.by_gain():
        cost = ranking.groups[at].price
        if spent + cost <= most:
            taken, spent = [*taken, at], spent + cost
    return taken


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of measuring each group alone on one sample."""
    return _runs(candidate, judge, 1)


def _runs(candidate: Candidate, judge: Judge, feeds: int) -> float:
    """Return the runs of measuring each group alone, from its segment on, and whole models."""
    plan, work = candidate.plan, judge.work
    choosing = judge.split.choosing
    groups = max(len(plan.weights), len(plan.activations))
    segments = 1 if isinstance(choosing, StreamSamples) else count_segments(len(plan.placements))
    runs = groups * (segments + 1) / (2 * segments) + 1 + MEASURED  # if segments cost the same
    ranking = count_runs(first_feeds(choosing, feeds)) if choosing else 0
    whole = runs * ranking + TRIED * count_runs(choosing)
    return 4 * work.opening + whole * work.quantized


PROTECT = Remedy("protected", explain_unneeded, leave_layers, estimate=estimate)

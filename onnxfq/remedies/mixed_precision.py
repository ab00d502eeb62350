"""`protect`: layers that are not quantized, so that a promise is kept or the worst noise is gone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from onnxfq.calibration.statistics import Statistics
from onnxfq.choices import PROTECT_DB as PROTECT_DB
from onnxfq.choices import RANKING_FEEDS
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.documents.sensitivity import FLOAT, Remedy, Sensitivity
from onnxfq.errors import RecipeError
from onnxfq.graph.model import Model, list_graphs
from onnxfq.interchange import ExternalEncodingsFile
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.remedies.accuracy_target import AccuracyTarget, Aim, SqnrAim, open_aim
from onnxfq.remedies.quantizer_toggles import QuantizerToggles, first_feeds
from onnxfq.remedies.round_weights import Rounding
from onnxfq.remedies.sensitivity import find_remedy, next_count, rank_groups
from onnxfq.remedies.task_metric import TaskMetric
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions
from onnxfq.stages.planned_encodings import PlannedEncodings, plan_encodings
from onnxfq.targets.recipes import RECIPES

MULTIPLIES_PER_DB = 0.01
"""Share of the multiply-adds that `protect_outputs` may leave in float for each dB that the outputs lack."""

LEAST_GAIN_DB = 3.0
"""Gain in dB for which groups stay in float although PROTECT_DB is not reached: half of the noise."""

_ROUNDS = 16
"""Attempts, each with more groups, before the promise counts as broken."""


class Protected(NamedTuple):
    """A plan, and what was measured to choose it.

    Attributes:
        recipe: with an override for what stays in float.
        planned: its plan.
        statistics: of all its activations.
        plan: the part of it that is encoded.
        encodings: of `plan`.
        rounding: of its weights; None before they are rounded.
        sensitivity: the measurement that chose, or that found nothing to choose; None if none was needed.
    """

    recipe: Recipe
    planned: PlannedEncodings
    statistics: Statistics
    plan: Plan
    encodings: Encodings
    rounding: Rounding | None = None
    sensitivity: Sensitivity | None = None

    @staticmethod
    def of(
        model: Model,
        recipe: Recipe,
        planned: PlannedEncodings,
        statistics: Statistics,
        weights: Sequence[Encoding] | None = None,
    ) -> Protected:
        """Return the plan of `recipe` with its encodings, not measured yet, and known `weights`."""
        return Protected(recipe, planned, statistics, *planned.encode(model, statistics, weights=weights))

    def rounded(self, rounding: Rounding) -> Protected:
        """Return this with rounded weights."""
        return self._replace(rounding=rounding, encodings=rounding.encodings)

    def rounded_as(self, start: Protected, model: Model) -> Protected:
        """Return this with the rounded weights of `start` that kept their format."""
        if start.rounding is None:
            return self
        return self.rounded(start.rounding.for_plan(model, self.plan, self.encodings))

    def open_board(self, inputs: QuantizeSession, options: RunOptions) -> QuantizerToggles:
        """Return the switchboard of this plan. Raises ModelError without an output of numbers."""
        tensors = None if self.rounding is None else self.rounding.tensors
        return QuantizerToggles.open(inputs, self.plan, self.encodings, options, tensors)

    def prove(self, aim: Aim, inputs: QuantizeSession, options: RunOptions) -> float:
        """Return the value of this plan on the part of the data that proves."""
        board = self.open_board(inputs, options)
        return aim.prove(board, board.everything)


def keep_promise(
    inputs: QuantizeSession,
    start: Protected,
    encodings: ExternalEncodingsFile | None,
    promise: AccuracyTarget,
    options: RunOptions,
) -> Protected:
    """Return `start` itself if it keeps `promise`, else with the cheapest groups not quantized that do.

    All of the data proves `start`. For others a part of it chooses, and the other part proves.

    Args:
        inputs: the model, and the data.
        start: the plan to measure.
        encodings: external ones, as for `plan_encodings`.
        promise: what to keep.
        options: threads and progress.

    Raises DataError without data, RecipeError if the promise cannot be kept, with the best that was reached.
    """
    board = start.open_board(inputs, options)
    if promise.weight_bits is not None:
        return _widen_weights(inputs, start, board, encodings, promise, options)
    task = None
    if promise.max_drop is not None:
        task = TaskMetric(promise.metric, promise.labels, board, inputs, options.data.limit is not None)
    aim = open_aim(promise, inputs, task)
    chosen, proven = (part(board, board.everything) for part in (aim.choose, aim.prove))
    best = aim.join(chosen, proven)
    if best >= aim.wanted:
        return start
    progress = options.stage("protect")
    ranked = rank_groups(board, first_feeds(inputs.kept, RANKING_FEEDS), start.recipe, progress)
    most, known = len(ranked.groups), {0: chosen}
    count = next_count(0, most) if chosen >= aim.wanted else 0  # the part that proves alone may lack it
    for _ in range(_ROUNDS):
        found = find_remedy(board, ranked, aim, least=count, known=known, fallback=promise.fallback)
        assert found.remedy is not None
        count = len(found.remedy.kept)
        if not count or (count == most and promise.fallback == FLOAT):
            break
        made = _leave_out(inputs, start, found, found.remedy, encodings, options)
        reached = made.prove(aim, inputs, options)
        if reached >= aim.wanted:
            kept = found.remedy.model_copy(update={"before": proven, "reached": reached})
            return made._replace(sensitivity=found.model_copy(update={"remedy": kept}))
        best = max(best, reached)
        if count == most:
            break
        count = next_count(count, most)
    raise RecipeError(
        f"recipe {start.recipe.name} cannot keep {aim.wanted:g} {aim.measure}: {best:.4g} was "
        f"reached, and the next step would change {count} of {most} groups of layers; ask for "
        "less, or take a recipe with wider formats"
    )


def _widen_weights(
    inputs: QuantizeSession,
    start: Protected,
    board: QuantizerToggles,
    encodings: ExternalEncodingsFile | None,
    promise: AccuracyTarget,
    options: RunOptions,
) -> Protected:
    """Return `start` with wider formats for the groups that gain most for their bits, as many as fit.

    Raises RecipeError if the weights have more bits on average than promised.
    """
    limit, fallback = promise.weight_bits, promise.fallback
    assert limit is not None
    wide = (RECIPES[fallback].weights.qtype if fallback in RECIPES else qtype_by_name(fallback)).bits
    sizes = _weight_sizes(inputs.model, start.plan)
    total, used = sum(n for n, _ in sizes.values()), sum(n * bits for n, bits in sizes.values())
    if used > limit * total:
        raise RecipeError(
            f"recipe {start.recipe.name} gives weights {used / total:.4g} bits on average, and at most "
            f"{limit:g} were promised; take a recipe with fewer bits"
        )
    aim = SqnrAim(math.inf, inputs.kept)
    feeds = first_feeds(aim.choosing, RANKING_FEEDS)
    ranked = rank_groups(board, feeds, start.recipe, options.stage("protect"))
    added = [
        sum(n * max(0, wide - bits) for n, bits in (sizes.get(name, (0, wide)) for name in group.tensors))
        for group in ranked.groups
    ]
    kept: list[int] = []
    for at in sorted(range(len(added)), key=lambda at: -ranked.groups[at].noise / max(added[at], 1)):
        if added[at] and used + added[at] <= limit * total:
            kept, used = [*kept, at], used + added[at]
    remedy = Remedy(
        measure=aim.measure,
        wanted=0.0,
        reached=0.0,
        before=aim.prove(board, board.everything),
        kept=tuple(kept),
        multiplies=ranked.multiplies(kept),
        fallback=fallback,
        weight_bits=used / total,
    )
    made = start if not kept else _leave_out(inputs, start, ranked, remedy, encodings, options)
    remedy = remedy.model_copy(update={"reached": made.prove(aim, inputs, options)})
    return made._replace(sensitivity=ranked.model_copy(update={"remedy": remedy}))


def _weight_sizes(model: Model, plan: Plan) -> dict[str, tuple[int, int]]:
    """Return the number of elements and the bits of each by quantized weight."""
    counts = {
        t.name: math.prod(t.dims) for graph in list_graphs(model.proto.graph) for t in graph.initializer
    }
    return {p.tensor: (counts[p.tensor], p.spec.qtype.bits) for p in plan.weights if p.tensor in counts}


def lowest_sqnr(evaluation: Evaluation) -> float:
    """Return the lowest SQNR in dB of the outputs of the fake-quant model; inf if nothing was compared."""
    worst = next((one.worst for one in evaluation.candidates[:1]), None)
    return math.inf if worst is None else worst.sqnr_db


def is_low(evaluation: Evaluation, least: float) -> bool:
    """Tell whether an output of the fake-quant model has an SQNR below `least` dB."""
    return lowest_sqnr(evaluation) < least


def protect_outputs(
    inputs: QuantizeSession, start: Protected, least: float, options: RunOptions
) -> Protected:
    """Return `start` with the few groups in float that cost its outputs most.

    The cheapest groups that restore `least` dB, up to MULTIPLIES_PER_DB for each missing dB; if that is not
    enough, those that gain LEAST_GAIN_DB. Other feeds than those that chose must confirm the gain.

    Args:
        inputs: the model, and the kept feeds.
        start: the plan to measure.
        least: dB of the outputs, of the logits where these are measured.
        options: threads and progress.
    """
    board = start.open_board(inputs, options)
    aim = SqnrAim(least, inputs.kept)
    chosen, proven = (part(board, board.everything) for part in (aim.choose, aim.prove))
    if min(chosen, proven) >= least or not board.groups:
        return start
    progress = options.stage("protect")
    ranked = rank_groups(board, first_feeds(aim.choosing, RANKING_FEEDS), start.recipe, progress)
    affordable = _affordable(ranked, MULTIPLIES_PER_DB * (least - min(chosen, proven)))
    known = {0: chosen}
    for wanted in (aim, SqnrAim(chosen + LEAST_GAIN_DB, inputs.kept)):
        least_count = next_count(0, len(affordable)) if chosen >= wanted.wanted else 0
        found = find_remedy(
            board, ranked, wanted, least=least_count, among=affordable, known=known, fallback=FLOAT
        )
        remedy = found.remedy
        assert remedy is not None
        if remedy.is_kept and remedy.kept:
            made = _leave_out(inputs, start, ranked, remedy, None, options)
            reached = made.prove(aim, inputs, options)
            if reached >= min(least, proven + LEAST_GAIN_DB / 2):
                remedy = remedy.model_copy(update={"wanted": least, "before": proven, "reached": reached})
                return made._replace(sensitivity=ranked.model_copy(update={"remedy": remedy}))
    worst = min(chosen, proven)
    none = Remedy(measure=aim.measure, wanted=least, reached=worst, before=worst, kept=())
    return start._replace(sensitivity=ranked.model_copy(update={"remedy": none}))


def _affordable(ranked: Sensitivity, most: float) -> list[int]:
    """Return groups that together cost at most `most` of the multiply-adds, the best for its cost first."""
    taken: list[int] = []
    spent = 0.0
    for at in ranked.by_gain():
        cost = ranked.groups[at].cost
        if spent + cost <= most:
            taken, spent = [*taken, at], spent + cost
    return taken


def _leave_out(
    inputs: QuantizeSession,
    start: Protected,
    found: Sensitivity,
    remedy: Remedy,
    encodings: ExternalEncodingsFile | None,
    options: RunOptions,
) -> Protected:
    """Return the plan without the groups of the remedy, and all statistics that it needs."""
    override = found.override(remedy.kept, RECIPES.get(remedy.fallback, remedy.fallback))
    recipe = start.recipe.model_copy(update={"overrides": (*start.recipe.overrides, override)})
    planned = plan_encodings(inputs.ranked, recipe, encodings)
    unknown = planned.unknown
    missing = tuple(p for p in unknown.activations if p.tensor not in start.statistics)
    statistics = start.statistics
    if missing and inputs.feeds is not None and inputs.feeds.source.repeats:
        # Another input of a sum may be quantized now.
        part = unknown.model_copy(update={"placements": missing})
        more = collect_statistics(inputs.ranked, part, inputs.feeds, options.observing)
        statistics = replace(statistics, values={**statistics.values, **more.values})
    elif missing:
        why = "the data can be read only once, and nothing was observed here"
        planned = replace(planned, plan=planned.plan.without([p.tensor for p in missing], why))
    return Protected.of(inputs.model, recipe, planned, statistics).rounded_as(start, inputs.model)

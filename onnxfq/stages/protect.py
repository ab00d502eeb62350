"""`protect`: the fewest groups of layers in float that keep a promised SQNR."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.errors import RecipeError
from onnxfq.graph.model import Model
from onnxfq.interchange import GivenFile
from onnxfq.numerics.metrics import ratio_db
from onnxfq.stages.encoding_sources import PlannedEncodings, plan_encodings
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions
from onnxfq.stages.quantize_inputs import QuantizeInputs
from onnxfq.stages.sensitivity import SAMPLES, Switchboard, rank_groups, spread_feeds, with_remedy

CHOICES = 8
"""Feeds on which the number of groups in float is chosen; fewer rank the groups."""

PROOFS = 16
"""Feeds that prove the promise; others than those that chose, if there are any."""

_ROUNDS = 4
"""Attempts, each with a higher aim, before the promise counts as broken."""


class Protected(NamedTuple):
    """A plan that keeps a promise.

    Attributes:
        recipe: with an override for what stays in float.
        planned: its plan.
        statistics: of all its activations.
        plan: the part of it that is encoded.
        encodings: of `plan`.
        sensitivity: the measurement that chose; None if nothing had to be chosen.
    """

    recipe: Recipe
    planned: PlannedEncodings
    statistics: Statistics
    plan: Plan
    encodings: Encodings
    sensitivity: Sensitivity | None = None

    @staticmethod
    def of(model: Model, recipe: Recipe, planned: PlannedEncodings, statistics: Statistics) -> Protected:
        """Return the plan of `recipe` with its encodings, not measured yet."""
        return Protected(recipe, planned, statistics, *planned.encode(model, statistics))


def protect(
    inputs: QuantizeInputs,
    start: Protected,
    encodings: GivenFile | None,
    min_sqnr: float | None,
    options: RunOptions,
) -> Protected:
    """Return `start` itself if its outputs have `min_sqnr` dB, else with the fewest groups in float that do.

    Some of the kept feeds choose, others prove.

    Args:
        inputs: the model, and the kept feeds.
        start: the plan to measure.
        encodings: external ones, as for `plan_encodings`.
        min_sqnr: the promise in dB; None promises nothing.
        options: threads and progress.

    Raises DataError without data, RecipeError if the promise cannot be kept, with the best that was reached.
    """
    if min_sqnr is None:
        return start
    choosing, proving = _split_feeds(inputs.kept)
    whole = _board(inputs, start, [*choosing, *proving], options)
    board = whole.on(choosing)
    everything = board.noise([board.enable(board.groups)])[0]
    reached, wanted = min(ratio_db(1.0, everything), _sqnr(whole.on(proving))), min_sqnr
    if reached >= min_sqnr:
        return start
    few = board.on(spread_feeds(choosing, SAMPLES))
    ranked, count = rank_groups(few, start.recipe, options.stage("protect")), 0
    ranked = ranked.model_copy(update={"noise": everything, "samples": len(choosing)})
    for _ in range(_ROUNDS):
        found = with_remedy(board, ranked, wanted)
        assert found.remedy is not None
        count = found.remedy.groups
        if count == len(ranked.groups):
            break
        made = _leave_out(inputs, start, found, encodings, options)
        reached = _sqnr(_board(inputs, made, proving, options))
        if reached >= min_sqnr:
            kept = found.remedy.model_copy(update={"wanted_db": min_sqnr, "reached_db": reached})
            return made._replace(sensitivity=found.model_copy(update={"remedy": kept}))
        wanted += min_sqnr - reached
    raise RecipeError(
        f"recipe {start.recipe.name} cannot keep {min_sqnr:g} dB: {reached:.1f} dB was reached, and the next "
        f"step would leave {count} of {len(ranked.groups)} groups of layers in float; ask for less, or take "
        "a recipe with wider formats"
    )


def _split_feeds(kept: list[Feed]) -> tuple[list[Feed], list[Feed]]:
    """Return feeds that choose and feeds that prove, both spread over the data."""
    choosing = spread_feeds(kept, CHOICES)
    taken = {id(feed) for feed in choosing}
    return choosing, spread_feeds([feed for feed in kept if id(feed) not in taken] or kept, PROOFS)


def _board(inputs: QuantizeInputs, made: Protected, feeds: list[Feed], options: RunOptions) -> Switchboard:
    return Switchboard.open(inputs, made.plan, made.encodings, feeds, options)


def _sqnr(board: Switchboard) -> float:
    """Return the SQNR in dB with everything quantized."""
    return ratio_db(1.0, board.noise([board.enable(board.groups)])[0])


def _leave_out(
    inputs: QuantizeInputs,
    start: Protected,
    found: Sensitivity,
    encodings: GivenFile | None,
    options: RunOptions,
) -> Protected:
    """Return the plan with the groups of the remedy in float, and all statistics that it needs."""
    assert found.remedy is not None
    override = found.override(found.remedy.groups)
    recipe = start.recipe.model_copy(update={"overrides": (*start.recipe.overrides, override)})
    planned = plan_encodings(inputs.ranked, recipe, encodings)
    unknown = planned.unknown
    missing = tuple(p for p in unknown.activations if p.tensor not in start.statistics)
    statistics = start.statistics
    if missing and inputs.feeds is not None:
        # Another input of a sum may be quantized now.
        part = unknown.model_copy(update={"placements": missing})
        more = collect_statistics(inputs.model, part, inputs.feeds, options.observing)
        statistics = replace(statistics, values={**statistics.values, **more.values})
    return Protected.of(inputs.model, recipe, planned, statistics)

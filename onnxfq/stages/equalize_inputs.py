"""Equalization inside `quantize`: the choice of methods, confirmed by the outputs on some samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations

import numpy as np

from onnxfq.data import Feed
from onnxfq.documents.equalization import METHODS, Equalization, EqualizedGroup, Method, Trial
from onnxfq.documents.recipe import ChannelMethods, Recipe
from onnxfq.errors import DataError
from onnxfq.graph.external.scratch_file import weights_in
from onnxfq.graph.model import Model
from onnxfq.interchange import GivenFile
from onnxfq.numerics.metrics import ratio_db
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.encoding_sources import plan_encodings
from onnxfq.stages.equalize import Equalized, equalize
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions
from onnxfq.stages.quantize_inputs import QuantizeInputs
from onnxfq.stages.switchboard import Switchboard

SAMPLES = 64
"""Feeds that are read ahead to choose factors. Half of them confirm methods, with factors of the others."""

LEAST_GAIN_DB = 0.5
"""Gain of the outputs below which a method is left."""


def equalize_inputs(
    inputs: QuantizeInputs,
    recipe: Recipe,
    options: RunOptions,
    encodings: GivenFile | None = None,
    observed: bool = False,
) -> tuple[QuantizeInputs, Equalization | None]:
    """Return `inputs` with the model that `recipe` wants equalized, and what was done.

    Without data, or with statistics or encodings of the model as it is, nothing is changed, and the result
    says so. Cross-layer equalization by name then goes by the ranges of weights.

    Args:
        inputs: the model and its data.
        recipe: its `equalize` and `smooth`.
        options: threads.
        encodings: a file of another tool.
        observed: whether statistics are given.

    Raises DataError for a method by name that lacks what it needs.
    """
    methods = recipe.channel_methods
    if not (methods.cross_layer or methods.smooth):
        return inputs, None
    lacks = "statistics or encodings of the model as it is" if observed or encodings is not None else ""
    named = [name for name in _names(methods) if name not in methods.confirmed]
    if lacks and named:
        raise DataError(
            f"recipe {recipe.name} changes channels ({', '.join(named)}), and {lacks} are given; give data "
            "alone, or equalize: depthwise and smooth: none"
        )
    feeds = [] if lacks or inputs.feeds is None else inputs.feeds.read_ahead(SAMPLES)
    if not feeds and "smooth" in named:
        raise DataError(f"recipe {recipe.name} smooths activations and needs data for it; give data")
    if lacks or (not feeds and not named):
        return inputs, Equalization(why=f"left: {lacks or 'no data'} given")
    choosing, confirming = (feeds[::2], feeds[1::2] or feeds) if methods.confirmed else (feeds, [])
    followed = with_run_ranks(inputs.ranked, feeds[0], everywhere=True) if feeds else inputs.ranked
    plan = plan_encodings(inputs.ranked, recipe).plan
    best, trials = inputs, list[Trial]()
    groups: tuple[EqualizedGroup, ...] = ()
    reached, taken = -np.inf, methods
    waiting: list[tuple[ChannelMethods, Equalized]] = []
    with weights_in(inputs.scratch):
        for tried in _candidates(methods):
            found = equalize(inputs.model, plan, tried, choosing, options.threads, followed)
            if not found.changed:
                # The first, without methods, is measured only beside another.
                waiting += [] if waiting or trials else [(tried, found)]
                continue
            for one, result in (*waiting, (tried, found)):
                made = inputs if not result.changed else _with_model(inputs, result.model, feeds)
                sqnr = _sqnr(made, recipe, choosing, confirming, options) if methods.confirmed else 0.0
                trials.append(Trial(methods=_names(one), sqnr_db=sqnr))
                if sqnr >= reached + LEAST_GAIN_DB:
                    reached, best, groups, taken = sqnr, made, result.groups, one
            waiting = []
        if methods.confirmed and best is not inputs:
            # The methods are confirmed; all feeds know the ranges better than those that chose.
            found = equalize(inputs.model, plan, taken, feeds, options.threads, followed)
            best, groups = _with_model(inputs, found.model, feeds), found.groups
    if waiting:
        groups = waiting[0][1].groups
    return best, Equalization(groups=groups, trials=tuple(trials) if methods.confirmed else ())


def _names(methods: ChannelMethods) -> tuple[Method, ...]:
    return tuple(name for name in METHODS if getattr(methods, name))


def _candidates(methods: ChannelMethods) -> list[ChannelMethods]:
    """Return what is compared: the methods by name with every selection of the others, fewest first."""
    asked = _names(methods)
    always = [name for name in asked if name not in methods.confirmed]
    free = [name for name in asked if name in methods.confirmed]
    chosen = chain.from_iterable(combinations(free, count) for count in range(len(free) + 1))
    tried = [{*always, *more} for more in chosen]
    return [methods._replace(cross_layer="cross_layer" in one, smooth="smooth" in one) for one in tried]


def _with_model(inputs: QuantizeInputs, model: Model, feeds: Sequence[Feed]) -> QuantizeInputs:
    """Return `inputs` with another model of the same function."""
    ranked = with_run_ranks(model, feeds[0]) if feeds and lacks_ranks(model) else model
    return replace(inputs, model=model, ranked=ranked)


def _sqnr(
    inputs: QuantizeInputs,
    recipe: Recipe,
    choosing: Sequence[Feed],
    confirming: Sequence[Feed],
    options: RunOptions,
) -> float:
    """Return the SQNR in dB of the outputs of the quantized model on the feeds that confirm."""
    planned = plan_encodings(inputs.ranked, recipe)
    observing = replace(options.observing, nonfinite=options.data.nonfinite)
    statistics = collect_statistics(inputs.model, planned.unknown, choosing, observing)
    plan, encodings = planned.encode(inputs.model, statistics)
    board = Switchboard.open(inputs, plan, encodings, options)
    return ratio_db(1.0, board.noise(confirming, [board.everything])[0])

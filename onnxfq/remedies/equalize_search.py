"""Equalization inside `quantize`: the choice of methods, confirmed by the outputs on some samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onnxfq.data import Feed
from onnxfq.documents.equalization import METHODS, Equalization, FactorTrial, Method
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import ChannelMethods, Recipe
from onnxfq.errors import DataError
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.interchange import ExternalEncodingsFile
from onnxfq.numerics.metrics import ratio_db
from onnxfq.remedies.equalize import Equalized, equalize
from onnxfq.remedies.quantizer_toggles import QuantizerToggles
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions
from onnxfq.stages.planned_encodings import plan_encodings

SAMPLES = 64
"""Samples that choose factors. Half of them confirm groups, with factors of the others."""

LEAST_GAIN_DB = 0.5
"""Gain of the outputs that confirms factors."""

USELESS = "the outputs on some samples gain too little"
HARMFUL = "the outputs on some samples are better without it"


def equalize_inputs(
    inputs: QuantizeSession,
    recipe: Recipe,
    options: RunOptions,
    encodings: ExternalEncodingsFile | None = None,
    observed: bool = False,
) -> tuple[QuantizeSession, Equalization | None]:
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
    feeds = [] if lacks or inputs.feeds is None else inputs.feeds.select(SAMPLES)
    if not feeds and "smooth" in named:
        raise DataError(f"recipe {recipe.name} smooths activations and needs data for it; give data")
    if lacks or (not feeds and not named):
        return inputs, Equalization(why=f"left: {lacks or 'no data'} given")
    choosing, confirming = (feeds[::2], feeds[1::2] or feeds) if methods.confirmed else (feeds, [])
    followed = with_run_ranks(inputs.ranked, feeds[0], everywhere=True) if feeds else inputs.ranked
    plan = plan_encodings(inputs.ranked, recipe).plan
    tried = _Trials(inputs, recipe, plan, options, choosing, confirming, followed)
    with weights_stored_in(inputs.scratch):
        found = tried.confirm(tried.equalize(methods, choosing), methods)
        if tried.trials and found.changed:
            # The groups are confirmed; all feeds know the ranges better than those that chose.
            left = {g.tensor: g.why for g in found.groups if g.why in (USELESS, HARMFUL)}
            found = tried.equalize(methods, feeds).without(left)
        model = tried.with_model(found)
    return model, Equalization(groups=found.groups, trials=tuple(tried.trials))


def _names(methods: ChannelMethods) -> tuple[Method, ...]:
    return tuple(name for name in METHODS if getattr(methods, name))


@dataclass
class _Trials:
    """Equalized models, compared by the outputs of their quantized forms on kept samples."""

    inputs: QuantizeSession
    recipe: Recipe
    plan: Plan
    options: RunOptions
    choosing: Sequence[Feed]
    confirming: Sequence[Feed]
    followed: Model
    reached: float = -np.inf
    trials: list[FactorTrial] = field(default_factory=list)

    def equalize(self, methods: ChannelMethods, feeds: Sequence[Feed]) -> Equalized:
        """Return factors by `feeds`."""
        return equalize(self.inputs.model, self.plan, methods, feeds, self.options.threads, self.followed)

    def confirm(self, found: Equalized, methods: ChannelMethods) -> Equalized:
        """Return `found` with the groups that the outputs confirm, as far as `methods` asks for that.

        Either half of the groups of a method is left out on trial; if that helps, its halves in turn. One
        group may spoil what the others gain.
        """
        asked = [g for g in found.groups if not g.why and g.method in methods.confirmed]
        if not asked:
            return found
        plain = found.without({group.tensor: USELESS for group in asked})
        if not self.inputs.judged.logits:
            return plain
        least = self.measure(plain) + LEAST_GAIN_DB
        best, self.reached = found, self.measure(found)
        for method in METHODS:
            mine = [group.tensor for group in asked if group.method == method]
            for part in _halves(mine) or [mine] * (0 < len(mine) < len(asked)):
                best = best.without(dict.fromkeys(self._narrow(best, part), HARMFUL))
        return best if self.reached >= least else plain

    def _narrow(self, found: Equalized, part: Sequence[str]) -> Sequence[str]:
        """Return the fewest groups of `part` that are found to be harmful, or none."""
        least, left = self.reached + LEAST_GAIN_DB, list[str]()
        parts = [part]
        while parts:
            part = parts.pop()
            sqnr = self.measure(found.without(dict.fromkeys(part, HARMFUL)))
            if sqnr >= least:
                self.reached = least = sqnr
                left, parts = list(part), _halves(part)
        return left

    def measure(self, found: Equalized) -> float:
        """Return the SQNR in dB of the outputs of the quantized model on the feeds that confirm."""
        inputs, options = self.with_model(found), self.options
        planned = plan_encodings(inputs.ranked, self.recipe)
        observing = replace(options.observing, nonfinite=options.data.nonfinite)
        statistics = collect_statistics(inputs.ranked, planned.unknown, self.choosing, observing)
        plan, encodings = planned.encode(inputs.model, statistics)
        board = QuantizerToggles.open(inputs, plan, encodings, options)
        sqnr = ratio_db(1.0, board.noise(self.confirming, [board.everything])[0])
        left = tuple(group.tensor for group in found.groups if group.why == HARMFUL)
        used = {group.method for group in found.groups if not group.why}
        methods = tuple(name for name in METHODS if name in used)
        self.trials.append(FactorTrial(methods=methods, left=left, sqnr_db=sqnr))
        return sqnr

    def with_model(self, found: Equalized) -> QuantizeSession:
        """Return the inputs with the equalized model."""
        model, feeds = found.model, self.choosing
        if not found.changed:
            return self.inputs
        ranked = with_run_ranks(model, feeds[0]) if feeds and lacks_ranks(model) else model
        return replace(self.inputs, model=model, ranked=ranked)


def _halves(names: Sequence[str]) -> list[Sequence[str]]:
    """Return both halves; nothing of one name, since it was tried alone."""
    middle = len(names) // 2
    return [names[:middle], names[middle:]] if middle else []

"""`EQUALIZE` and `SMOOTH`: channel factors, named by the recipe or chosen by the outputs on some samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from onnxfq.data import Feed
from onnxfq.documents.equalization import METHODS, Equalization, FactorTrial, Method
from onnxfq.documents.recipe import ChannelMethods, Recipe
from onnxfq.errors import DataError
from onnxfq.graph.channels import ChannelGroup
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.judging.candidate import Candidate, Sources, build_candidate
from onnxfq.judging.judge import LEAST_GAIN_DB, Judge, Proposal, Refusal, Remedy
from onnxfq.remedies.equalize import SAMPLED, Equalized, equalize, find_groups
from onnxfq.remedies.rotate import rotate_named
from onnxfq.remedies.same_function import (
    SAMPLES,
    explain_fixed_model,
    explain_lack,
    select_apart,
    with_model,
)
from onnxfq.runtime.type_inference import with_run_ranks
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.planned_encodings import plan_encodings
from onnxfq.stages.statistics_source import GatheredStatistics

RANGED = 16
"""Most samples that give the ranges of tensors while sets of factors are compared."""

HOPELESS_DB = 3.0
"""Loss in dB of all factors together, from which on no part of them is tried: twice the noise."""

UNLIKELY = f"all groups together are not expected to gain {LEAST_GAIN_DB} dB"
USELESS = "the outputs on some samples gain too little"
HARMFUL = "the outputs on some samples are better without it"


def is_asked(recipe: Recipe) -> bool:
    """Tell whether `recipe` wants methods confirmed by the outputs, so that they have no budget."""
    return bool(recipe.channel_methods.confirmed)


def list_named(recipe: Recipe) -> list[Method]:
    """Return the methods by which `recipe` wants the channels of the model changed before it is observed."""
    methods = recipe.channel_methods
    return [name for name in METHODS if getattr(methods, name) and name not in methods.confirmed]


def equalize_named(
    session: QuantizeSession, recipe: Recipe, sources: Sources, options: QuantizeOptions
) -> tuple[QuantizeSession, Equalization | None]:
    """Return `session` with the model that `recipe` wants equalized or rotated by name, and what was done.

    Cross-layer equalization without data goes by the ranges of weights. Raises DataError for a method that
    lacks what it needs.
    """
    names = list_named(recipe)
    lacks = explain_lack(sources)
    session = rotate_named(session, recipe, lacks)
    if not names:
        return session, None
    if lacks:
        raise DataError(
            f"recipe {recipe.name} changes channels ({', '.join(names)}), and {lacks} are given; give data "
            "alone, or equalize: depthwise and smooth: none"
        )
    feeds = [] if session.feeds is None else session.feeds.select(SAMPLES)
    if not feeds and "smooth" in names:
        raise DataError(f"recipe {recipe.name} smooths activations and needs data for it; give data")
    named = recipe.channel_methods.only(names)
    with weights_stored_in(session.scratch):
        equalized = _equalize(session, recipe, named, feeds, options.threads)
        return _with_factors(session, equalized, feeds), Equalization(groups=equalized.groups)


def _equalize(
    session: QuantizeSession, recipe: Recipe, methods: ChannelMethods, feeds: Sequence[Feed], threads: int
) -> Equalized:
    """Return factors by `feeds`; without any, by the ranges of weights."""
    ranked, plan = session.ranked, plan_encodings(session.ranked, recipe).plan
    ranked = with_run_ranks(ranked, feeds[0], everywhere=True) if feeds else ranked
    return equalize(session.model, plan, methods, feeds, threads, ranked)


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no channel factors are tried; empty if the recipe lets the judge decide."""
    recipe = candidate.recipe
    if is_asked(recipe):
        return ""
    if recipe.activations is None or recipe.activations.equalize != "depthwise":
        return "the recipe names the equalization"
    if recipe.activations.dynamic or recipe.activations.granularity != "per_tensor":
        return "no activation has one constant scale"
    if candidate.equalization is not None:
        return "the recipe changes channels by name"
    return explain_fixed_model(candidate, judge)


def explain_unneeded_smoothing(candidate: Candidate, judge: Judge) -> str:
    """Return why activations are not smoothed unasked; empty if an output is low."""
    recipe = candidate.recipe
    if recipe.smooth != "none" or recipe.activations is None:
        return "the recipe names the smoothing"
    return explain_fixed_model(candidate, judge) or judge.explain_sound(candidate)


def equalize_layers(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with the factors that the recipe asks for, or else with cross-layer factors."""
    recipe = candidate.recipe
    if is_asked(recipe):
        return search_factors(candidate, judge, recipe)
    return search_factors(candidate, judge, recipe.override(activations={"equalize": "auto"}))


def estimate(
    candidate: Candidate, judge: Judge, method: Method = "cross_layer", samples: int = RANGED
) -> float:
    """Return the runs of choosing factors, of comparing with them, and of the ranges of all samples."""
    model, work = candidate.session.ranked, judge.work
    groups = find_groups(model, method, candidate.recipe.target)
    if not groups:
        return 0.0
    factors = _factor_runs(model, groups, judge, min(samples, work.samples))
    return factors + _measuring_runs(judge) + work.observe() + work.calibrate


def _factor_runs(model: Model, groups: Sequence[ChannelGroup], judge: Judge, samples: int) -> float:
    """Return the runs of choosing the factors of `groups` by the channels of so many samples."""
    sizes = {name: math.prod(t.dims) for name, t in model.constants.items()}
    elements = sum(min(sizes.get(fold.constant, 0), SAMPLED) for group in groups for fold in group.readers)
    return judge.work.factors(len(groups), elements) + judge.work.opening + samples * judge.work.quantized


def _measuring_runs(judge: Judge) -> float:
    """Return the runs of comparing one set of factors."""
    work = judge.work
    return work.observe(min(RANGED, work.samples)) + work.calibrate + judge.compare_choosing(1)


def search_factors(candidate: Candidate, judge: Judge, recipe: Recipe) -> Proposal | Refusal:
    """Return the candidate of `recipe` with channel factors for the groups that the outputs confirm.

    Either half of the groups of a method is left out on trial; if that helps, its halves in turn. One group
    may spoil what the others gain.
    """
    session, lacks = candidate.session, explain_lack(judge.sources)
    if lacks or session.feeds is None:
        return Refusal(f"{lacks or 'no data'} given")
    methods = recipe.channel_methods
    feeds = select_apart(candidate, judge, _count_samples(candidate, judge, methods))
    with weights_stored_in(session.scratch):
        search = _Search(session, recipe, feeds, judge)
        equalized, trials = search.confirm(methods.only(methods.confirmed), judge.choose([candidate])[0])
        before = () if candidate.equalization is None else candidate.equalization.groups
        evidence = Equalization(groups=(*before, *equalized.groups), trials=tuple(trials))
        if not equalized.changed:
            is_unlikely = any(group.why == UNLIKELY for group in equalized.groups)
            why = UNLIKELY if is_unlikely else "no method gains enough"  # the first line says so too
            return Refusal(why, evidence.lines()[1:], evidence)
        judge.budget.spend(judge.work.observe() + judge.work.calibrate)
        smoothed = build_candidate(
            _with_factors(session, equalized, feeds), recipe, judge.sources, judge.options, evidence
        )
    return Proposal(smoothed, evidence=evidence)


def _count_samples(candidate: Candidate, judge: Judge, methods: ChannelMethods) -> int:
    """Return how many samples give the ranges of channels, by the budget."""
    if is_asked(judge.start.recipe):
        return SAMPLES
    method: Method = "smooth" if "smooth" in methods.confirmed else "cross_layer"
    # Later remedies keep their time.
    too_long = judge.budget.explain_extra(estimate(candidate, judge, method, SAMPLES))
    return RANGED if too_long else SAMPLES


def smooth(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with smoothed activations, for a recipe that does not ask for it."""
    if not find_groups(candidate.session.ranked, "smooth", candidate.recipe.target):
        return Refusal("no input of a product can be divided")
    return search_factors(candidate, judge, candidate.recipe.override(smooth="auto"))


@dataclass
class _Search:
    """Equalized models, compared by the outputs of their quantized forms."""

    session: QuantizeSession
    recipe: Recipe
    feeds: Sequence[Feed]
    judge: Judge

    def confirm(self, methods: ChannelMethods, known_db: float) -> tuple[Equalized, list[FactorTrial]]:
        """Return the factors of `methods` without the groups that are found harmful, and the trials.

        `known_db` is the SQNR without them, with the ranges of all samples. If the factors do not gain, it is
        measured again with the ranges of RANGED samples, as theirs is.
        """
        session, judge = self.session, self.judge
        equalized = _equalize(session, self.recipe, methods, self.feeds, judge.options.threads)
        if equalized.groups:
            judge.budget.spend(_factor_runs(session.model, equalized.channels, judge, len(self.feeds)))
        asked = [group for group in equalized.groups if not group.why]
        is_judged = bool(asked and session.judged.deciding)
        is_free = is_judged and not is_asked(judge.start.recipe)
        why = UNLIKELY if is_free and equalized.expected_db < LEAST_GAIN_DB else USELESS
        plain = equalized.without({group.tensor: why for group in asked})
        if not is_judged or why == UNLIKELY:
            return plain, []
        trials = [FactorTrial(methods=(), sqnr_db=known_db)]
        reached = self._measure(equalized, trials)
        if reached < known_db + LEAST_GAIN_DB and not self._explain_refusal():
            known_db = min(known_db, self._measure(plain, trials))
        least = known_db + LEAST_GAIN_DB
        for method in METHODS if reached > known_db - HOPELESS_DB else ():
            names = [group.tensor for group in asked if group.method == method]
            for part in _halves(names) or [names] * (0 < len(names) < len(asked)):
                equalized, reached = self._narrow(equalized, part, reached, trials)
        return (equalized if reached >= least else plain), trials

    def _narrow(
        self, equalized: Equalized, part: Sequence[str], reached: float, trials: list[FactorTrial]
    ) -> tuple[Equalized, float]:
        """Return the factors without the fewest groups of `part` that are harmful, and their SQNR in dB."""
        best, parts = equalized, [part]
        while parts:
            part = parts.pop()
            if self._explain_refusal():
                break
            without = equalized.without(dict.fromkeys(part, HARMFUL))
            score_db = self._measure(without, trials)
            if score_db >= reached + LEAST_GAIN_DB:
                best, reached, parts = without, score_db, _halves(part)
        return best, reached

    def _explain_refusal(self) -> str:
        """Return why no further set of factors is compared; a recipe that asks for them has no budget."""
        if is_asked(self.judge.start.recipe):
            return ""
        rest = self.judge.work.observe() + self.judge.work.calibrate  # the final estimate, with all samples
        return self.judge.budget.explain_extra(_measuring_runs(self.judge) + rest)

    def _measure(self, equalized: Equalized, trials: list[FactorTrial]) -> float:
        """Return the SQNR in dB of the quantized model whose ranges RANGED of the given samples tell."""
        feeds = self.feeds[:RANGED]
        self.judge.budget.spend(self.judge.work.observe(len(feeds)) + self.judge.work.calibrate)
        session = _with_factors(self.session, equalized, feeds)
        planned = plan_encodings(session.ranked, self.recipe)
        statistics = collect_statistics(session.ranked, planned.unknown, feeds, self.judge.options.observing)
        gathered = GatheredStatistics(statistics, statistics)
        (score_db,) = self.judge.choose([Candidate.of(session, self.recipe, planned, gathered)])
        left = tuple(group.tensor for group in equalized.groups if group.why == HARMFUL)
        used = {group.method for group in equalized.groups if not group.why}
        methods: tuple[Method, ...] = tuple(name for name in METHODS if name in used)
        trials.append(FactorTrial(methods=methods, left=left, sqnr_db=score_db))
        return score_db


def _with_factors(session: QuantizeSession, equalized: Equalized, feeds: Sequence[Feed]) -> QuantizeSession:
    """Return `session` with the equalized model."""
    return with_model(session, equalized.model, feeds) if equalized.changed else session


def _halves(names: Sequence[str]) -> list[Sequence[str]]:
    """Return both halves; nothing of one name, since it was tried alone."""
    middle = len(names) // 2
    return [names[:middle], names[middle:]] if middle else []


EQUALIZE = Remedy(
    "equalize",
    explain_unneeded,
    equalize_layers,
    is_asked=is_asked,
    is_free=True,
    is_cure=True,
    estimate=estimate,
)
SMOOTH = Remedy(
    "smooth", explain_unneeded_smoothing, smooth, is_cure=True, estimate=partial(estimate, method="smooth")
)

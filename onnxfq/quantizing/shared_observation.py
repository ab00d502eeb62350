"""`open_shared`: sessions of several recipes, which share one pass over the data where they can."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx

from onnxfq.calibration.statistics import HISTOGRAM, Key, Observed, Statistics, kinds_of
from onnxfq.data import Data
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import OnnxfqError, RecipeError
from onnxfq.graph.signature import computed_tensors
from onnxfq.judging.candidate import Sources
from onnxfq.remedies.equalize_search import list_named
from onnxfq.stages.inputs import QuantizeSession, load_written_recipe, open_inputs
from onnxfq.stages.limits import with_limits
from onnxfq.stages.observers import observed_tensors
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.planned_encodings import plan_encodings
from onnxfq.stages.statistics_source import GatheredStatistics, gather_statistics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SharedSession:
    """A recipe, the model as its target prepares it, and the data.

    Attributes:
        recipe: the recipe.
        session: its session.
        gathered: statistics of its activations from a pass for several recipes; None without such a pass.
    """

    recipe: Recipe
    session: QuantizeSession
    gathered: GatheredStatistics | None = None


@dataclass(frozen=True)
class _Observing:
    """The tensors that a pass for one recipe observes."""

    shared: SharedSession
    plan: Plan
    observed: Sequence[Observed]

    @staticmethod
    def of(shared: SharedSession, sources: Sources, options: QuantizeOptions) -> _Observing:
        model = shared.session.ranked
        plan = with_limits(plan_encodings(model, shared.recipe, sources.encodings).unknown, model)
        return _Observing(shared, plan, observed_tensors(model, plan, options.observing))

    @cached_property
    def explain_alone(self) -> str:
        """Why no other recipe can have its statistics; empty if one can."""
        if any(placement.calibrator.is_ordered for placement in self.plan.activations):
            return "its calibrator depends on the order of the data"
        recipe = self.shared.recipe
        is_changed = list_named(recipe) or recipe.rotate == "always"
        return "it changes channels before it observes" if is_changed else ""

    def lacks(self, other: _Observing) -> list[str]:
        """Return the tensors of `other` that this form of the model lacks."""
        if other.shared.session.model.proto is self.shared.session.model.proto:
            return []
        return [own.tensor for own in other.observed if own.tensor not in self._tensors]

    @cached_property
    def _tensors(self) -> set[str]:
        proto = self.shared.session.model.proto
        return computed_tensors(proto) | {value.name for value in proto.graph.input}

    def explain_difference(self, base: _Observing, widest: Mapping[str, Observed]) -> str:
        """Return why it cannot join a pass over the model of `base` and over `widest`; empty if it can."""
        lacking = base.lacks(self)
        if lacking:
            targets = f"target {base.shared.recipe.target}", f"target {self.shared.recipe.target}"
            return f"the model as {targets[0]} prepares it lacks {lacking[0]!r}, which {targets[1]} has"
        for own in self.observed:
            other = widest.get(own.tensor, own)
            if own != other and not _is_plain(own) and not _is_plain(other):
                return f"it observes {own.tensor!r} in other groups than another recipe"
        return ""


def open_shared(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    recipes: Sequence[str | Path | Recipe],
    sources: Sources,
    options: QuantizeOptions,
    folder: Path | None,
) -> list[tuple[str, SharedSession | OnnxfqError]]:
    """Return name and session of each recipe, or its error, with the statistics of one pass for all of them.

    These are the statistics of a pass for that recipe alone: to the bit if the targets prepare the model in
    one form, up to the rounding of its floats if not. A recipe that needs another pass has no statistics yet,
    and a note gives the reason.

    Args:
        model: a path or a ModelProto.
        data: as `quantize` takes it.
        recipes: names, files or recipes.
        sources: with statistics nothing is observed.
        options: how the data is read and observed.
        folder: large temporary weights go to its file system.

    Raises RecipeError for recipes of one name, and the errors of reading and observing.
    """
    opened: dict[str, SharedSession | OnnxfqError] = {}
    observing: list[_Observing] = []
    first: SharedSession | None = None
    is_observed = data is not None and sources.statistics is None
    for given in recipes:
        name = given.name if isinstance(given, Recipe) else str(given)
        try:
            recipe = load_written_recipe(given, options)
        except OnnxfqError as error:
            opened[name] = error
            continue
        name = recipe.name
        if name in opened:
            raise RecipeError(f"two recipes are called {name}; give each once, and files their own names")
        if first is None:
            output = None if folder is None else folder / "any"
            session = open_inputs(model, data, recipe, options, output=output, observed=not is_observed)
            first = SharedSession(recipe, session)
        try:
            opened[name] = shared = SharedSession(recipe, _open_next(first, recipe))
            if is_observed:
                observing.append(_Observing.of(shared, sources, options))
        except OnnxfqError as error:
            opened[name] = error
    opened |= _observe(observing, options)
    return list(opened.items())


def _open_next(first: SharedSession, recipe: Recipe) -> QuantizeSession:
    if recipe.existing != first.recipe.existing:
        raise RecipeError(
            f"recipe {recipe.name} has existing: {recipe.existing}, and {first.recipe.name} has existing: "
            f"{first.recipe.existing}; quantize with them one at a time"
        )
    is_first = recipe.target == first.recipe.target
    return first.session if is_first else first.session.for_target(recipe.target)


def _observe(recipes: Sequence[_Observing], options: QuantizeOptions) -> dict[str, SharedSession]:
    """Return each recipe by its name, with the statistics of one pass, or with data for another pass.

    The pass runs the form of the model that has the tensors of most recipes.
    """
    able = [joining for joining in recipes if not joining.explain_alone]
    base = max(able, key=lambda form: -sum(bool(form.lacks(other)) for other in able), default=None)
    sharing: list[_Observing] = []
    sessions: dict[str, SharedSession] = {}
    placements: dict[str, Placement] = {}
    widest: dict[str, Observed] = {}
    for joining in recipes:
        shared = joining.shared
        why = joining.explain_alone or joining.explain_difference(base or joining, widest)
        if why:
            log.warning("recipe %s needs another pass over the data: %s", shared.recipe.name, why)
            sessions[shared.recipe.name] = replace(shared, session=shared.session.alone())
            continue
        sharing.append(joining)
        wider = {own.tensor for own in joining.observed if own.tensor not in widest or not _is_plain(own)}
        widest |= {own.tensor: own for own in joining.observed if own.tensor in wider}
        placements |= {p.tensor: p for p in joining.plan.activations if p.tensor in wider}
    if base is None:
        return sessions
    plan = base.plan.model_copy(update={"placements": tuple(placements.values())})
    gathered = gather_statistics(base.shared.session, plan, None, options, options.ray)
    return sessions | {
        joining.shared.recipe.name: replace(joining.shared, gathered=_narrow(gathered, joining.observed))
        for joining in sharing
    }


def _is_plain(observed: Observed) -> bool:
    """Tell whether only the whole tensor is observed, which every other kind includes."""
    return observed.shape is None and not observed.channels


def _narrow(gathered: GatheredStatistics, observed: Sequence[Observed]) -> GatheredStatistics:
    """Return the part of `gathered` that a pass over `observed` has, in its order."""
    if not observed:  # such a pass only takes the digest
        nothing = Statistics(gathered.whole.model_sha256, 0, {}, data=gathered.whole.data)
        return GatheredStatistics(nothing, nothing)
    keys: dict[Key, None] = {}
    for one in observed:
        kinds = [kind.name for kind in kinds_of(one)]
        keys |= dict.fromkeys((one.tensor, name) for name in (HISTOGRAM.name, *kinds))

    def select(statistics: Statistics) -> Statistics:
        return replace(statistics, values={key: statistics.values[key] for key in keys})

    seen = select(gathered.seen)
    return GatheredStatistics(seen, seen if gathered.whole is gathered.seen else select(gathered.whole))

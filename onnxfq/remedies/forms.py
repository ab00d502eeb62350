"""`Models` of a candidate, and `compare_models`: their scores against the float model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import onnx

from onnxfq.data import Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import RecipeError
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.graph.patterns.open_sums import explain_open_sums
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.samples import REPORTED
from onnxfq.judging.work import least_samples, limit_samples
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.remedies.beyond_ranges import describe_beyond
from onnxfq.remedies.cache_error import describe_cache_error
from onnxfq.remedies.rounding_search import can_round_again
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.cast import CastModel, cast_rest
from onnxfq.stages.derived_scales import with_half_scales
from onnxfq.stages.evaluate import compare_forms
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.limits import describe_limits
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.stored_weights import compare_stored
from onnxfq.support.clock import Clock
from onnxfq.targets.onnxruntime.releases import release_of
from onnxfq.targets.target import target_by_name


class Models:
    """The models of a candidate, each built when it is first read.

    Attributes:
        encodings: of the candidate, with scales that the float type of the rest can hold.
    """

    def __init__(self, candidate: Candidate, options: QuantizeOptions, clock: Clock) -> None:
        """Build nothing yet.

        Args:
            candidate: what is inserted.
            options: float type, release of ONNX Runtime, threads, device and progress.
            clock: of the stages.

        Raises RecipeError for caches next to another float type; the models raise the errors of the stages.
        """
        name, recipe = options.floats.name, candidate.recipe.name
        if name != "fp32" and any(placement.stored for placement in candidate.plan.placements):
            raise RecipeError(
                f"recipe {recipe} quantizes caches, which ONNX Runtime's CPU reads in float32 models, not "
                f"with --float {name}; leave out one of the two"
            )
        self._candidate, self._options, self._clock = candidate, options, clock
        self.encodings = with_half_scales(candidate.encodings, name)

    @cached_property
    def simulation(self) -> onnx.ModelProto:
        """The model with FakeQuantize nodes."""
        return self._insert(insert_fake_quantize)

    @cached_property
    def cast(self) -> CastModel:
        """The model with Q/DQ pairs in the form of its target; `simulation` for a target without pairs."""
        floats, candidate = self._options.floats, self._candidate
        has_pairs = target_by_name(candidate.recipe.target).has_pairs
        insert = partial(insert_qdq, lowest_opset=floats.min_opset)
        paired = self._insert(insert) if has_pairs else self.simulation
        made = cast_rest(candidate.session, paired, floats, self._options)
        self._clock.lap("cast")
        return made

    @cached_property
    def qdq(self) -> onnx.ModelProto:
        """The model to write. Raises ModelError for a release of ONNX Runtime that cannot run it."""
        return release_of(self._options.runtime).limit_model(self.cast.qdq, self._candidate.recipe.name)

    def _insert(self, insert: Callable[[Model, Plan, Encodings], onnx.ModelProto]) -> onnx.ModelProto:
        candidate = self._candidate
        with weights_stored_in(candidate.session.scratch):
            proto = insert(candidate.model, candidate.plan, self.encodings)
        if candidate.corrected is not None:
            proto.metadata_props.add(key="onnxfq.bias_correction", value="auto")
        if candidate.session.is_drawn:
            proto.metadata_props.add(key="onnxfq.data", value="drawn")
        self._clock.lap("insert")
        return proto


@dataclass(frozen=True)
class Forms:
    """The models of a candidate, and what was measured on them.

    Attributes:
        models: each built when it is first read.
        evaluation: against the float model.
        beyond: what values beyond the ranges of the compared candidate cost; empty if that is unknown.
    """

    models: Models
    evaluation: Evaluation
    beyond: str = ""


def compare_models(
    candidate: Candidate,
    options: QuantizeOptions,
    clock: Clock,
    feeds: Sequence[Feed] | None = None,
    least: int | None = None,
    early: bool = False,
) -> Forms:
    """Return the models of a candidate, compared with the float model.

    Args:
        candidate: what is inserted.
        options: as for `Models`.
        clock: of the stages.
        feeds: the samples to compare on; None for those that are kept.
        least: how many of them are compared, though the interval is narrow; None by what they cost.
        early: build what is written first, so that its errors come before remedies are tried.

    Raises the errors of the stages.
    """
    models = Models(candidate, options, clock)
    _ = models.qdq if early else None
    feeds = limit_samples(candidate, candidate.session.kept) if feeds is None else feeds
    has_twins = options.floats.name not in HALF_TYPES and not options.exact
    evaluation = compare_forms(
        candidate.session,
        models.simulation,
        None if has_twins else models.cast.comparable,
        options,
        feeds=feeds,
        least=least_samples(candidate, feeds) if least is None else least,
    )
    clock.lap("evaluate")
    return Forms(models, evaluation)


def finish_forms(judge: Judge, candidate: Candidate, forms: Forms, clock: Clock) -> tuple[Candidate, Forms]:
    """Return `candidate` with the ranges of all samples, and its models; the scores are of `candidate`.

    Args:
        judge: names the samples for the report.
        candidate: the result of all remedies.
        forms: of the first candidate.
        clock: of the stages.
    """
    evaluation = forms.evaluation if judge.first is None else judge.first
    if candidate is not judge.start or judge.is_promised:
        forms = compare_models(candidate, judge.options, clock, judge.reported, REPORTED)
        evaluation = judge.with_folds(candidate, forms.evaluation)
    beyond = describe_beyond(candidate.statistics, candidate.encodings)
    forms = replace(forms, evaluation=evaluation, beyond=beyond)
    clock.lap("evaluate")
    complete = candidate.with_all_samples(judge.options, can_round_again(candidate, judge))
    if complete is not candidate:
        forms = replace(forms, models=Models(complete, judge.options, clock))
    lacking = explain_unsupported(forms.models.cast.comparable)
    if lacking and candidate.session.feeds is not None:
        notes = (*evaluation.notes, f"Q/DQ model not run: {lacking}")
        forms = replace(forms, evaluation=evaluation.model_copy(update={"notes": notes}))
    return complete, forms


def describe_forms(candidate: Candidate, forms: Forms, judge: Judge) -> list[str]:
    """Return notes: weights quantized before, unreached ranges, the error of caches, growing ranges."""
    model = candidate.session.model if candidate.rounding is None else candidate.rounding.model
    lines = [
        compare_stored(model, candidate.plan, forms.models.encodings).line,
        describe_limits(model, forms.models.encodings),
        describe_cache_error(
            model, candidate.plan, forms.models.encodings, candidate.session.kept, judge.options.threads
        ),
        judge.start.statistics.describe_growth(),
        forms.beyond,
        *_explain_unmeasured(candidate.session),
    ]
    return [line for line in lines if line]


def _explain_unmeasured(session: QuantizeSession) -> list[str]:
    """Return notes on what other data would show: longer streams, other lengths and other batches."""
    if session.feeds is None:
        return []
    shapes = [{name: array.shape for name, array in feed.items()} for feed in session.kept]
    sizes = {
        name: [set(axis) for axis in zip(*(one[name] for one in shapes), strict=False)]
        for name in (shapes[0] if shapes else ())
    }
    return [session.feeds.explain_cut(), *explain_open_sums(session.model.proto, sizes)]

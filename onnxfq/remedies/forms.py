"""`build_forms`: the models of a candidate, compared with the float model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from onnxfq.data import Feed
from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import RecipeError
from onnxfq.execution.reference_runs import ReferenceRuns
from onnxfq.graph.patterns.open_sums import explain_open_sums
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.samples import REPORTED
from onnxfq.judging.work import least_samples, limit_samples
from onnxfq.remedies.beyond_ranges import describe_beyond
from onnxfq.remedies.cache_error import describe_cache_error
from onnxfq.remedies.rounding_search import can_round_again
from onnxfq.stages.cast import cast_rest
from onnxfq.stages.derived_scales import with_half_scales
from onnxfq.stages.evaluate import compare_forms
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.insert import insert_forms
from onnxfq.stages.limits import describe_limits
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.stored_weights import compare_stored
from onnxfq.support.clock import Clock
from onnxfq.targets.onnxruntime.releases import release_of

NOT_COMPARED = Evaluation(reference="float", feeds=0, candidates=())


@dataclass(frozen=True)
class Forms:
    """The models of a candidate.

    Attributes:
        encodings: of both, with scales that the float type of the rest can hold.
        simulation: the model with FakeQuantize nodes.
        qdq: the model with Q/DQ pairs in the form of its target; `simulation` for a target without pairs.
        floats: the float32 exceptions of the Q/DQ model; None if the whole non-quantized part is float32.
        evaluation: against the float model; nothing unless the models were compared.
        beyond: what values beyond the ranges of the compared candidate cost; empty if that is unknown.
    """

    encodings: Encodings
    simulation: onnx.ModelProto
    qdq: onnx.ModelProto
    floats: FloatPlan | None
    evaluation: Evaluation = NOT_COMPARED
    beyond: str = ""


def build_forms(
    candidate: Candidate,
    options: QuantizeOptions,
    clock: Clock,
    runs: ReferenceRuns | None = None,
    feeds: Sequence[Feed] | None = None,
    least: int | None = None,
) -> Forms:
    """Insert nodes, cast the rest, and compare both forms with the float model.

    Args:
        candidate: what is inserted.
        options: float type, release of ONNX Runtime, threads, device and progress.
        clock: of the stages.
        runs: of the float model; without them nothing is compared.
        feeds: the samples to compare on; None for those that are kept.
        least: how many of them are compared, though the interval is narrow; None by what they cost.

    Raises TargetError for a release that cannot run the model, and the errors of the stages.
    """
    if options.floats.name != "fp32" and any(placement.stored for placement in candidate.plan.placements):
        raise RecipeError(
            f"recipe {candidate.recipe.name} quantizes caches, which ONNX Runtime's CPU reads in float32 "
            f"models, not with --float {options.floats.name}; leave out one of the two"
        )
    encodings = with_half_scales(candidate.encodings, options.floats.name)
    session = replace(candidate.session, model=candidate.model)
    simulation, qdq = insert_forms(session, candidate.plan, encodings, options.floats)
    for proto in [simulation] if qdq is simulation else [simulation, qdq]:
        if candidate.corrected is not None:
            proto.metadata_props.add(key="onnxfq.bias_correction", value="auto")
        if session.is_drawn:
            proto.metadata_props.add(key="onnxfq.data", value="drawn")
    clock.lap("insert")
    cast = cast_rest(candidate.session, qdq, options.floats, options)
    qdq = release_of(options.runtime).limit_model(cast.qdq, candidate.recipe.name)
    clock.lap("cast")
    forms = Forms(encodings, simulation, qdq, cast.floats)
    if runs is None:
        return forms
    feeds = limit_samples(candidate, candidate.session.kept) if feeds is None else feeds
    evaluation = compare_forms(
        candidate.session,
        simulation,
        cast.comparable,
        options,
        twins=cast.floats is None,
        floats=runs,
        feeds=feeds,
        least=least_samples(candidate) if least is None else least,
    )
    clock.lap("evaluate")
    return replace(forms, evaluation=evaluation)


def finish_forms(
    judge: Judge, candidate: Candidate, forms: Forms, clock: Clock, runs: ReferenceRuns
) -> tuple[Candidate, Forms]:
    """Return `candidate` with the ranges of all samples, and its models; the scores are of `candidate`.

    Args:
        judge: names the samples for the report.
        candidate: the result of all remedies.
        forms: of the first candidate.
        clock: of the stages.
        runs: of the float model.
    """
    evaluation = forms.evaluation if judge.first is None else judge.first
    if candidate is not judge.start or judge.is_promised:
        forms = build_forms(candidate, judge.options, clock, runs, judge.reported, REPORTED)
        evaluation = judge.with_folds(candidate, forms.evaluation)
    beyond = describe_beyond(candidate.statistics, candidate.encodings)
    forms = replace(forms, evaluation=evaluation, beyond=beyond)
    clock.lap("evaluate")
    complete = candidate.with_all_samples(judge.options, can_round_again(candidate, judge))
    if complete is candidate:
        return candidate, forms
    built = build_forms(complete, judge.options, clock)
    return complete, replace(built, evaluation=forms.evaluation, beyond=beyond)


def describe_forms(candidate: Candidate, forms: Forms, judge: Judge) -> list[str]:
    """Return notes: weights quantized before, unreached ranges, the error of caches, growing ranges."""
    model = candidate.session.model if candidate.rounding is None else candidate.rounding.model
    lines = [
        compare_stored(model, candidate.plan, forms.encodings).line,
        describe_limits(model, forms.encodings),
        describe_cache_error(
            model, candidate.plan, forms.encodings, candidate.session.kept, judge.options.threads
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

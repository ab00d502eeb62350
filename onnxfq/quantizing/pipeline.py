"""`quantize`: all stages in a row, for one recipe, or for each of several that share a pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, overload

import onnx

from onnxfq.choices import CHANNEL_FEEDS, DEFAULT_RECIPE
from onnxfq.data import Data
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.trial import Trial
from onnxfq.errors import OnnxfqError
from onnxfq.execution.reference_runs import ReferenceRuns
from onnxfq.graph.io.data_paths import check_model_output, model_bytes
from onnxfq.interchange.genai_folder import open_folders
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Candidate, Sources, build_candidate
from onnxfq.judging.combinations import improve
from onnxfq.judging.judge import Judge
from onnxfq.quantizing.keywords import explain_keywords
from onnxfq.quantizing.result import QuantizeResult as QuantizeResult
from onnxfq.quantizing.result import RecipeOutcome as RecipeOutcome
from onnxfq.quantizing.shared_observation import SharedSession, open_shared
from onnxfq.remedies.equalize_search import equalize_named
from onnxfq.remedies.forms import Forms, compare_models, describe_forms
from onnxfq.remedies.registry import REMEDIES, finish
from onnxfq.remedies.runtime_cure import finish_proven
from onnxfq.stages.inputs import embed_weights, load_written_recipe, open_inputs
from onnxfq.stages.options import QuantizeOptions, RunOptions, choose_padding, shows_progress
from onnxfq.stages.write import write_model
from onnxfq.support.clock import Clock
from onnxfq.support.files import make_folder
from onnxfq.targets.onnxruntime.releases import release_of

AnyRecipe = str | Path | Recipe
Recipes = TypeVar("Recipes", bound=AnyRecipe)


@overload
def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None = None,
    output: str | Path | None = None,
    *,
    recipe: AnyRecipe = DEFAULT_RECIPE,
    sources: Sources | None = None,
    accuracy: AccuracyTarget | None = None,
    options: RunOptions | None = None,
) -> QuantizeResult: ...


@overload
def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None = None,
    output: str | Path | None = None,
    *,
    recipe: list[Recipes],
    sources: Sources | None = None,
    accuracy: AccuracyTarget | None = None,
    options: RunOptions | None = None,
) -> list[RecipeOutcome]: ...


@explain_keywords
@shows_progress
@open_folders
def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None = None,
    output: str | Path | None = None,
    *,
    recipe: AnyRecipe | list[Recipes] = DEFAULT_RECIPE,
    sources: Sources | None = None,
    accuracy: AccuracyTarget | None = None,
    options: RunOptions | None = None,
) -> QuantizeResult | list[RecipeOutcome]:
    """Quantize `model` with `data` and write the Q/DQ model, or a fake-quant model, to `output`.

    The file is checked, and run on one feed if ONNX Runtime has its kernels, before it takes its name.

    Args:
        model: a path or a ModelProto, which is not changed; or a folder of ONNX Runtime GenAI.
        data: a file or a folder of arrays or images, arrays, an iterable of feeds such as a torch DataLoader,
            or a function that makes one; texts for a folder; `DrawnInputs()`. None if none is needed.
        output: of the model; a folder for several recipes, and for a folder. None writes nothing.
        recipe: a name, a YAML file or a Recipe. A list is observed in one pass, and gives a list.
        sources: statistics, moments or encodings that are known already.
        accuracy: what to keep, at the price of the cheapest groups of layers, and which remedies are tried.
        options: batch, threads, device and data; `QuantizeOptions` adds float type, GPUs, runtime and Ray.

    Raises an OnnxfqError in one line, and writes nothing, if a stage fails.
    """
    accuracy, sources = AccuracyTarget.of(accuracy, data), sources or Sources()
    options = choose_padding(QuantizeOptions.of(options), accuracy.max_drop is not None)
    if isinstance(recipe, list):
        return _quantize_each(model, data, output, recipe, sources, accuracy, options)
    check_model_output(output, model, data, sources.statistics, sources.moments, sources.encodings, recipe)
    chosen, clock = load_written_recipe(recipe, options), Clock()
    session = open_inputs(
        model, data, chosen, options, output=output, observed=sources.statistics is not None
    )
    return _run_stages(SharedSession(chosen, session), output, sources, accuracy, options, clock)


def _run_stages(
    shared: SharedSession,
    output: str | Path | None,
    sources: Sources,
    accuracy: AccuracyTarget,
    options: QuantizeOptions,
    clock: Clock,
) -> QuantizeResult:
    chosen, session = shared.recipe, shared.session
    release_of(options.runtime).check_opset(session.model.opset, f"{session.model.source} is at")
    with ReferenceRuns(session.compared, session.judged, options.threads, options.device) as runs:
        session, equalization = equalize_named(replace(session, floats=runs), chosen, sources, options)
        if equalization is not None:
            clock.lap("equalize")
        start = build_candidate(session, chosen, sources, options, equalization, clock, shared.gathered)
        forms = compare_models(start, options, clock, early=accuracy.repair is not None or accuracy.is_target)
        judge = Judge.of(start, options, sources, forms.evaluation, accuracy)
        candidate, trials = improve(judge, start, REMEDIES, finish)
        clock.lap("remedies")
        candidate, forms, trials = finish_proven(judge, candidate, forms, trials, clock)
    write_model(forms.models.qdq, output, candidate.session.kept, options.threads)
    clock.lap("write")
    return _join_result(candidate, forms, trials, judge, clock)


def _quantize_each(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    folder: str | Path | None,
    recipes: Sequence[AnyRecipe],
    sources: Sources,
    accuracy: AccuracyTarget,
    options: QuantizeOptions,
) -> list[RecipeOutcome]:
    """Return what each recipe comes to; an error of one leaves the others alone."""
    given = (model, data, sources.statistics, sources.moments, sources.encodings, *recipes)
    outcomes: list[RecipeOutcome] = []
    with make_folder(folder) as place:
        for name, shared in open_shared(model, data, recipes, sources, options, place):
            stem = "model" if isinstance(model, onnx.ModelProto) else Path(model).stem
            output = None if place is None else place / f"{stem}.{name}.onnx"
            try:
                if isinstance(shared, OnnxfqError):
                    raise shared
                check_model_output(output, *given)
                result = _run_stages(shared, output, sources, accuracy, options, Clock())
            except OnnxfqError as error:
                outcomes.append(RecipeOutcome(name, error=error))
            else:
                size = 0 if output is None else model_bytes(output)
                outcomes.append(RecipeOutcome(name, result, output=output, bytes=size))
    return outcomes


def _join_result(
    candidate: Candidate, forms: Forms, trials: tuple[Trial, ...], judge: Judge, clock: Clock
) -> QuantizeResult:
    session = candidate.session
    notes = describe_forms(candidate, forms, judge)
    return QuantizeResult(
        staged=replace(session.model, notes=(*session.model.notes, *notes)) if notes else session.model,
        recipe=candidate.recipe,
        plan=candidate.plan,
        statistics=candidate.statistics.whole,
        encodings=forms.models.encodings,
        qdq=embed_weights(session.model, forms.models.qdq),
        models=forms.models,
        evaluation=forms.evaluation,
        floats=forms.models.cast.floats,
        scratch=session.scratch,
        matched=candidate.planned.matched,
        seconds=clock.seconds,
        trials=trials,
        candidate=candidate,
        samples=tuple(session.kept[:CHANNEL_FEEDS]),
    )

"""`onnxfq sensitivity`: the layers that cost the accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from onnxfq.cli.console import say, show_progress
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    CustomOpsOption,
    DataOption,
    FallbackOption,
    JsonOption,
    LabelsOption,
    MaxDropOption,
    MetricOption,
    MinSqnrOption,
    ModelArgument,
    QuietOption,
    RecipeOption,
    StatisticsOption,
    ThreadsOption,
    read_promise,
)
from onnxfq.data import DataOptions
from onnxfq.documents.recipe import DEFAULT_RECIPE, RECIPES
from onnxfq.documents.scores import LOW_SQNR_DB
from onnxfq.documents.sensitivity import FLOAT, Sensitivity
from onnxfq.errors import RecipeError
from onnxfq.stages.promise import Promise
from onnxfq.stages.sensitivity import SAMPLES
from onnxfq.stages.sensitivity import sensitivity as measure
from onnxfq.support.files import write_text


@with_data_options
def sensitivity(
    model: ModelArgument,
    data: DataOption,
    described: DataOptions,
    recipe: RecipeOption = DEFAULT_RECIPE,
    statistics: StatisticsOption = None,
    samples: Annotated[int, typer.Option(min=1, help="Measure this many samples.")] = SAMPLES,
    min_sqnr: MinSqnrOption = None,
    max_drop: MaxDropOption = None,
    labels: LabelsOption = None,
    metric: MetricOption = None,
    fallback: FallbackOption = FLOAT,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Write all groups.", show_default=False),
    ] = None,
    recipe_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml", help="Write a recipe with the remedy as an override.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    custom_ops: CustomOpsOption = None,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Rank the quantized layers of MODEL by the noise that each adds to the outputs.

    Every group of quantizers is switched on alone, in a model that is loaded once, and the worst are also left out. --metric
    or --labels measure the task as well, on half of the data for each group: they rank the groups that they
    separate. The remedy is for --min-sqnr or --max-drop; 20 dB without them.
    """
    if recipe_out is not None and recipe not in RECIPES:
        raise RecipeError(
            f"--recipe-out changes a built-in recipe, got {recipe}; add its overrides to that file"
        )
    given, none = (labels, metric), (None, None)
    promised, ranking = (none, given) if max_drop is None else (given, none)
    promise = read_promise(min_sqnr, max_drop, *promised, fallback) or Promise(min_sqnr=LOW_SQNR_DB)
    with show_progress(batch, threads, quiet or as_json, described, "cpu") as options:
        found = measure(
            model,
            data,
            recipe=recipe,
            statistics=statistics,
            samples=samples,
            promise=promise,
            labels=ranking[0],
            metric=ranking[1],
            options=options,
        )
    if output is not None:
        found.save(output)
    if recipe_out is not None:
        write_text(recipe_out, recipe_text(found))
    say(found.model_dump_json(indent=2) if as_json else found.table(), quiet and output is not None)
    say(f"remedy     {found.remedy_text()}", quiet or as_json)
    for written in (output, recipe_out):
        if written is not None:
            say(f"wrote      {written}", quiet or as_json)


def recipe_text(found: Sensitivity) -> str:
    """Return a recipe in YAML that has the remedy as an override."""
    remedy = found.remedy
    kept = []
    if remedy is not None and remedy.kept:
        override = found.override(remedy.kept, remedy.fallback)
        kept = [override.model_dump(mode="json", exclude_defaults=True)]
    return yaml.safe_dump({"base": found.recipe, "overrides": kept}, sort_keys=False)

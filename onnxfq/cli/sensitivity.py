"""`onnxfq sensitivity`: the layers that cost the accuracy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxfq.choices import DEFAULT_RECIPE, LOW_SQNR_DB, RANKING_FEEDS
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.options import (
    AccuracyOptions,
    CustomOpsOption,
    ModelArgument,
    RayOption,
    RecipeOption,
    StatisticsOption,
)
from onnxfq.cli.run_options import RunningOnCpu
from onnxfq.errors import RecipeError
from onnxfq.support.files import write_text

if TYPE_CHECKING:
    from onnxfq.documents.sensitivity import Sensitivity


def sensitivity(
    model: ModelArgument,
    data: DataOption,
    recipe: RecipeOption = DEFAULT_RECIPE,
    statistics: StatisticsOption = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Measure this many samples.")
    ] = RANKING_FEEDS,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Write all groups."),
    ] = None,
    recipe_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Write a recipe with the remedy as an override."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML page of all layers."),
    ] = None,
    ray: RayOption = None,
    custom_ops: CustomOpsOption = None,
    *,
    accuracy: AccuracyOptions,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """Rank the quantized layers of MODEL by the noise that each adds to the outputs.

    Every group of quantizers is switched on alone, in a model that is loaded once, and the worst are also
    left out. --metric or --labels measure the task as well, on half of the data for each group: they rank
    the groups that they separate. The remedy is for --min-sqnr or --max-drop; 20 dB without them.
    """
    from onnxfq.remedies.accuracy_target import AccuracyTarget
    from onnxfq.remedies.sensitivity import sensitivity as measure
    from onnxfq.targets.recipes import RECIPES, load_recipe

    if recipe_out is not None and load_recipe(recipe) not in RECIPES.values():
        raise RecipeError(
            f"--recipe-out changes a built-in recipe, got {recipe}; add its overrides to that file"
        )
    unmeasured = replace(accuracy, labels=None, metric=None)
    # Without a promised drop, labels and a metric only rank.
    promised, ranking = (unmeasured, accuracy) if accuracy.max_drop is None else (accuracy, unmeasured)
    with running.progress(printer) as options:
        found = measure(
            model,
            data,
            recipe=recipe,
            statistics=statistics,
            samples=samples,
            promise=promised.promise or AccuracyTarget(min_sqnr=LOW_SQNR_DB),
            metric=ranking.metric,
            labels=ranking.labels,
            ray=ray,
            options=options,
        )
    if output is not None:
        found.save(output)
    if recipe_out is not None:
        write_text(recipe_out, recipe_text(found))
    if report is not None:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need

        write_text(report, render_page([(model.stem, found)]))
    printer.show(found, hidden=printer.quiet and output is not None)
    printer.say(f"remedy     {found.remedy_text()}")
    printer.wrote(output, recipe_out, report)


def recipe_text(found: Sensitivity) -> str:
    """Return a recipe in YAML that has the remedy as an override."""
    import yaml

    from onnxfq.targets.recipes import RECIPES

    remedy = found.remedy
    kept = []
    if remedy is not None and remedy.kept:
        override = found.override(remedy.kept, RECIPES.get(remedy.fallback, remedy.fallback))
        kept = [override.model_dump(mode="json", exclude_defaults=True)]
    return yaml.safe_dump({"base": found.recipe, "overrides": kept}, sort_keys=False)

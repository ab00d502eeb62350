"""`onnxfq sensitivity`: the layers that cost the accuracy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from onnxfq.choices import DEFAULT_RECIPE, LOW_SQNR_DB, RANKING_FEEDS
from onnxfq.cli.console import Printing, write_page
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.option import option
from onnxfq.cli.options import (
    AccuracyOptions,
    CustomOpsOption,
    ModelArgument,
    PageOption,
    RecipeOption,
    StatisticsOption,
)
from onnxfq.cli.run_options import RunningOnCpu
from onnxfq.errors import RecipeError

if TYPE_CHECKING:
    from onnxfq.documents.sensitivity import Sensitivity

_SAMPLES = option("N", "Measure this many samples.", min=1)
_OUTPUT = option("FILE.json", "Write all groups.", "--output", "-o")
_RECIPE_OUT = option("FILE.yaml", "Write a recipe with the remedy as an override.")


def sensitivity(
    model: ModelArgument,
    data: DataOption,
    recipe: RecipeOption = DEFAULT_RECIPE,
    samples: Annotated[int, _SAMPLES] = RANKING_FEEDS,
    output: Annotated[Path | None, _OUTPUT] = None,
    recipe_out: Annotated[Path | None, _RECIPE_OUT] = None,
    report: PageOption = None,
    *,
    accuracy: AccuracyOptions,
    statistics: StatisticsOption = None,
    custom_ops: CustomOpsOption = None,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """Every group of quantizers is switched on alone, and the worst are also left out.

    --metric or --labels measure the task as well, on half of the data for each group: they rank the groups
    that they separate. The remedy is for --min-sqnr or --max-drop; 20 dB without them.
    """
    from onnxfq.remedies.sensitivity import sensitivity as measure
    from onnxfq.support.files import write_text
    from onnxfq.targets.recipes import RECIPES, load_recipe

    if recipe_out is not None and load_recipe(recipe) not in RECIPES.values():
        raise RecipeError(
            f"--recipe-out changes a built-in recipe, got {recipe}; add its overrides to that file"
        )
    unmeasured = replace(accuracy, labels=None, metric=None)
    # Without a promised drop, labels and a metric only rank.
    promised, ranking = (unmeasured, accuracy) if accuracy.max_drop is None else (accuracy, unmeasured)
    if not promised.is_promised:
        promised = replace(promised, min_sqnr=LOW_SQNR_DB)
    with running.progress(printer) as options:
        result = measure(
            model,
            data,
            recipe=recipe,
            statistics=statistics,
            samples=samples,
            accuracy=promised.to_target(),
            metric=ranking.metric,
            labels=ranking.labels,
            options=options,
        )
    if output is not None:
        result.save(output)
    if recipe_out is not None:
        write_text(recipe_out, recipe_text(result))
    write_page(report, model.stem, result)
    printer.show(result, hidden=printer.quiet and output is not None)
    printer.say(f"remedy     {result.remedy_text()}")
    printer.wrote(output, recipe_out, report)


def recipe_text(result: Sensitivity) -> str:
    """Return a recipe in YAML that has the remedy as an override."""
    import yaml

    from onnxfq.remedies.mixes import name_overrides

    remedy = result.remedy
    formats = {} if remedy is None else dict(zip(remedy.kept, remedy.formats, strict=True))
    kept = [one.model_dump(mode="json", exclude_defaults=True) for one in name_overrides(result, formats)]
    return yaml.safe_dump({"base": result.recipe, "overrides": kept}, sort_keys=False)

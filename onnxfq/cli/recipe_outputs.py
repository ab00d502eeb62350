"""Output of `quantize` with several recipes: one table, one page, and the artifacts of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from onnxfq.cli.artifacts import write_artifacts
from onnxfq.cli.command_line import command_line
from onnxfq.cli.console import Printer
from onnxfq.support.files import write_text

if TYPE_CHECKING:
    from onnxfq.remedies.result import RecipeOutcome
    from onnxfq.stages.options import RunOptions
    from onnxfq.targets.target import BuildOptions


def show_recipes(
    model: Path,
    outcomes: Sequence[RecipeOutcome],
    options: RunOptions,
    printer: Printer,
    time: bool,
    build: BuildOptions | None,
    report: Path | None,
    artifacts: Path | None,
) -> None:
    """Print the table of `outcomes`, write the page and the artifacts; exit with 1 if a recipe failed."""
    from onnxfq.report.recipe_table import compare_recipes

    asked = printer.as_json or report is not None or artifacts is not None
    table = compare_recipes(
        model, outcomes, options, time=time, build=build, command=command_line(), with_results=asked
    )
    done = [(outcome, outcome.result) for outcome in outcomes if outcome.result is not None]
    if report is not None and done:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need

        write_text(report, render_page([(model.stem, table)]))
    if artifacts is not None and done:
        named = [model.with_name(f"{model.stem}.{outcome.recipe}.onnx") for outcome, _ in done]
        results = [result for _, result in done]
        write_artifacts(artifacts, list(zip(named, results, table.results, strict=True)))
    printer.report(table, *table.lines())
    printer.wrote(*(outcome.output for outcome, _ in done), *((report, artifacts) if done else ()))
    if len(done) < len(outcomes):
        raise typer.Exit(1)

"""Output of `quantize`: a summary of one recipe or a table of several, a page, and artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from onnxfq.cli.artifacts import write_artifacts
from onnxfq.cli.console import Printer, command_line, exit_differing, write_page
from onnxfq.errors import OnnxfqError, join_lines

if TYPE_CHECKING:
    from onnxfq.quantizing.result import QuantizeResult, RecipeOutcome
    from onnxfq.stages.options import RunOptions
    from onnxfq.targets.target import BuildOptions


@dataclass(frozen=True)
class QuantizeOutputs:
    """Destinations of results.

    Attributes:
        model: the float model.
        output: the quantized model, or the folder of several.
        report: the page, if there is one.
        artifacts: the folder of all documents, if there is one.
        time: whether the models are timed.
        build: options of a build; None for none.
        printer: for standard output.
        thumbnails: whether the page has pictures of the worst samples.
    """

    model: Path
    output: Path
    report: Path | None
    artifacts: Path | None
    time: bool
    build: BuildOptions | None
    printer: Printer
    thumbnails: bool = False

    @property
    def is_recorded(self) -> bool:
        """Whether somebody reads the full record, which takes runs of both models."""
        return self.printer.as_json or self.report is not None or self.artifacts is not None

    def show_result(self, result: QuantizeResult, options: RunOptions) -> None:
        """Print the summary of one recipe, write the page and the artifacts."""
        from onnxfq.documents.timing import QUANTIZED
        from onnxfq.graph.io.data_paths import model_bytes
        from onnxfq.report.record import quantize_record
        from onnxfq.report.text import quantize_summary
        from onnxfq.tools.build_written import build_written
        from onnxfq.tools.time_models import time_models

        if self.time:  # without the thread that shows progress
            timing = time_models(self.model, {QUANTIZED: result.qdq}, result.samples[0], options.threads)
            result = replace(result, evaluation=result.evaluation.model_copy(update={"timing": timing}))
        built = None
        if self.build is not None:
            try:
                target = result.recipe.target
                built = build_written(result.qdq, target, result.samples, self.build, options.threads)
            except OnnxfqError as error:
                raise type(error)(f"{self.output} is written, but not built: {error}") from None
        sizes = model_bytes(self.model), model_bytes(self.output)
        record = None
        if self.is_recorded:
            record = quantize_record(result, sizes, command_line(), built, self.thumbnails)
        write_page(self.report, self.model.stem, record)
        # Last: a folder cannot wait for the other files.
        if self.artifacts is not None and record is not None:
            write_artifacts(self.artifacts, [(self.model, result, record)])
        lines = () if built is None else built.lines()
        self.printer.report(record, quantize_summary(result, sizes), *lines)
        self.printer.wrote(self.output, self.report, self.artifacts)
        exit_differing(result.evaluation)

    def show_outcomes(self, outcomes: Sequence[RecipeOutcome], options: RunOptions) -> None:
        """Print the table of several recipes, write the page and the artifacts; exit with 1 if one failed."""
        from onnxfq.report.recipe_table import compare_recipes

        table = compare_recipes(
            self.model,
            outcomes,
            options,
            time=self.time,
            build=self.build,
            command=command_line(),
            with_results=self.is_recorded,
        )
        done = [(outcome, outcome.result) for outcome in outcomes if outcome.result is not None]
        if done:
            write_page(self.report, self.model.stem, table)
        if self.artifacts is not None and done:
            named = [self.model.with_name(f"{self.model.stem}.{one.recipe}.onnx") for one, _ in done]
            results = [result for _, result in done]
            write_artifacts(self.artifacts, list(zip(named, results, table.results, strict=True)))
        self.printer.report(table, *table.lines())
        pages = (self.report, self.artifacts) if done else ()
        self.printer.wrote(*(outcome.output for outcome, _ in done), *pages)
        failed = [f"{one.recipe}: {one.error}" for one in outcomes if one.result is None]
        if failed:
            what = join_lines(f"{len(failed)} of {len(outcomes)} recipes failed: {'; '.join(failed)}")
            typer.echo(f"onnxfq: error: {what}", err=True)
            raise typer.Exit(1)
        exit_differing(*(result.evaluation for _, result in done))

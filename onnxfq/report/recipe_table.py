"""`compare_recipes`: results of several recipes and the float model, in one table and for one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from onnxfq.documents.timing import TimedModel, Timing
from onnxfq.errors import OnnxfqError
from onnxfq.graph.io.data_paths import model_bytes
from onnxfq.judging.judge import NO_PROMISE, PROMISED
from onnxfq.quantizing.result import QuantizeResult, RecipeOutcome
from onnxfq.report.record import ResultRecord, quantize_record
from onnxfq.report.text import is_unseen
from onnxfq.stages.cast import compare_half
from onnxfq.stages.options import RunOptions
from onnxfq.support.records import Count, PrintedRecord, Record
from onnxfq.support.tables import table_lines
from onnxfq.targets.target import BuildOptions, target_by_name
from onnxfq.tools.check import check
from onnxfq.tools.time_models import time_models

FLOAT = "float"
"""Row of the float model."""


class RecipeRow(Record):
    """One recipe, or the float model.

    Attributes:
        recipe: its name; `float`, or `float16` for the model without quantizers in half precision.
        target: empty for `float`.
        file: the written file; empty if none was.
        bytes: of that file with its data, or of the weights.
        quantized: operators with quantizers, of those that could have them, such as `36/48`.
        worst_db: SQNR in dB of the worst output or part that decides; None if nothing was compared.
        kept: operators that run in the promised precision, by the rules of the target or its builder.
        promised: operators with quantized inputs; None for a target without rules.
        builder: name and version of the builder; empty for rules.
        findings: where the target refuses the file, runs it in float or computes other values.
        difference: what the runtime of its users computes otherwise; empty for nothing.
        promise: what came of the accuracy that was asked for; empty if none was.
        error: why the recipe failed.
    """

    recipe: str
    target: str = ""
    file: str = ""
    bytes: Count | None = None
    quantized: str = ""
    worst_db: float | None = None
    kept: Count = 0
    promised: Count | None = None
    builder: str = ""
    findings: Count = 0
    difference: str = ""
    promise: str = ""
    error: str = ""

    def cells(self, timed: TimedModel | None) -> list[str]:
        """Return the cells of its line in a table."""
        size = "" if self.bytes is None else f"{self.bytes:,}"
        noise = "" if self.worst_db is None else f"{self.worst_db:.1f}"
        low = "" if self.promised is None else f"{self.kept}/{self.promised}"
        time = "" if timed is None else f"{timed.median_ms:.3f}"
        return [self.recipe, size, noise, self.quantized, low, time, "" if timed is None else timed.figure]


class RecipeTable(PrintedRecord):
    """All recipes of one model, and the float model (`.json`).

    Attributes:
        source: the float model.
        is_unseen: whether the compared samples gave neither ranges nor moments.
        timing: times of what could be timed; None if nobody asked.
        results: the full result of each recipe that did not fail.
    """

    format: Literal["onnxfq.recipes/1"] = "onnxfq.recipes/1"
    source: str
    is_unseen: bool
    rows: tuple[RecipeRow, ...]
    timing: Timing | None = None
    results: tuple[ResultRecord, ...] = ()

    def with_times(self) -> list[ResultRecord]:
        """Return the results, each with its own times in its evaluation."""
        return [
            result.model_copy(update={"evaluation": result.evaluation.model_copy(update={"timing": timing})})
            for result in self.results
            for timing in [self.timing and self.timing.only(result.recipe.name)]
        ]

    def cells(self) -> list[list[str]]:
        """Return the cells of its table, headings first, without columns that nothing fills."""
        noise = "unseen dB" if self.is_unseen else "SQNR dB"
        lines = [["recipe", "bytes", noise, "quantized", "low precision", "median ms", "time to float"]]
        for row in self.rows:
            lines.append(row.cells(None if self.timing is None else self.timing.of(row.recipe)))
        used = [any(line[place] for line in lines[1:]) for place in range(len(lines[0]))]
        return [[cell for cell, use in zip(line, used, strict=True) if use] for line in lines]

    def terms(self) -> list[str]:
        """Return what headings of the table mean, a line each."""
        builders = {row.builder or "the rules" for row in self.rows if row.promised is not None}
        by = ", ".join(sorted(builders))
        return [
            *(["unseen dB: SQNR of the worst output, on samples that gave no ranges"] * self.is_unseen),
            *([f"low precision: how many operators run as the recipe promises, by {by}"] if by else []),
        ]

    def lines(self) -> list[str]:
        """Return the table, and below it errors, findings, and what was not timed."""
        return [
            *(f"differs    {row.recipe}: {row.difference}" for row in self.rows if row.difference),
            *table_lines(self.cells(), names=(0,)),
            *(f"failed     {row.recipe}: {row.error}" for row in self.rows if row.error),
            *(f"promise    {row.recipe}: {row.promise}" for row in self.rows if row.promise),
            *(
                f"findings   {row.recipe}: {row.findings}; `onnxfq check {row.file or 'FILE'} "
                f"--target {row.target}` names them"
                for row in self.rows
                if row.findings
            ),
            *self.terms(),
            *([] if self.timing is None else [*self.timing.remarks(), *self.timing.notes]),
        ]


def compare_recipes(
    model: str | Path,
    outcomes: Sequence[RecipeOutcome],
    options: RunOptions | None = None,
    *,
    time: bool = False,
    build: BuildOptions | None = None,
    command: str = "",
    with_results: bool = False,
) -> RecipeTable:
    """Return the table of `outcomes` of `model`: sizes, noise, promised operators, and times.

    A target with GPUs has a row `float16` too: the model without quantizers, as its users would run it.

    Args:
        model: path of the float model.
        outcomes: what `quantize` returns for a list of recipes.
        options: threads and device; by default all cores and any device.
        time: time the models in turn.
        build: options of a build in place of rules; None for no build.
        command: the command line, for records.
        with_results: add the full results, which takes runs of both models.
    """
    model, options = Path(model), options or RunOptions()
    done = [(outcome, outcome.result) for outcome in outcomes if outcome.result is not None]
    timing, samples = None, [result.samples[0] for _, result in done if result.samples]
    if time and samples:
        written = {outcome.recipe: result.qdq for outcome, result in done}
        timing = time_models(model, written, samples[0], options.threads)
    before = model_bytes(model)
    rows = [RecipeRow(recipe=FLOAT, bytes=before), *_half_rows([result for _, result in done], options)]
    return RecipeTable(
        source=str(model),
        is_unseen=all(is_unseen(result) for _, result in done),
        rows=(*rows, *(_row(outcome, build) for outcome in outcomes)),
        timing=timing,
        results=tuple(quantize_record(result, (before, outcome.bytes), command) for outcome, result in done)
        if with_results
        else (),
    )


def _row(outcome: RecipeOutcome, build: BuildOptions | None) -> RecipeRow:
    result = outcome.result
    if result is None:
        return RecipeRow(recipe=outcome.recipe, error=str(outcome.error))
    target, worst = target_by_name(result.recipe.target), result.evaluation.worst
    coverage = result.plan.coverage()
    row = RecipeRow(
        recipe=outcome.recipe,
        target=target.name,
        quantized=f"{sum(one.quantized for one in coverage)}/{sum(one.total for one in coverage)}",
        file="" if outcome.output is None else str(outcome.output),
        bytes=outcome.bytes or None,
        worst_db=None if worst is None else worst.sqnr_db,
        difference=result.evaluation.difference,
        promise="; ".join(
            text
            for trial in result.trials
            if trial.remedy == PROMISED and trial.why != NO_PROMISE
            for text in trial.texts
        ),
    )
    if target.check is None:
        return row
    try:
        checked = check(result.qdq, target.name, build=build)
    except OnnxfqError as error:  # the file is written; only its build failed
        return row.model_copy(update={"error": f"it was written, but not checked: {error}"})
    return row.model_copy(
        update={
            "kept": sum(one.kept for one in checked.coverage),
            "promised": sum(one.promised for one in checked.coverage),
            "builder": checked.builder,
            "findings": sum(finding.severity != "warning" for finding in checked.findings),
        }
    )


def _half_rows(results: Sequence[QuantizeResult], options: RunOptions) -> list[RecipeRow]:
    """Return a row of each target with GPUs, for the model in float16 without quantizers."""
    rows = []
    for name, result in {result.recipe.target: result for result in results}.items():
        if not target_by_name(name).capabilities or result.candidate is None or not result.samples:
            continue
        row = RecipeRow(recipe="float16", target=name)
        try:
            size, evaluation = compare_half(result.candidate.session, options)
        except OnnxfqError as error:
            rows.append(row.model_copy(update={"error": str(error)}))
        else:
            worst = evaluation.worst
            changes = {"bytes": size, "worst_db": None if worst is None else worst.sqnr_db}
            rows.append(row.model_copy(update=changes))
    return rows

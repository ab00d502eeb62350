"""`onnxfq quantize`: all stages in a row."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.choices import DEFAULT_RECIPE, REPAIR_AUTO, THOROUGH, FloatName, RepairWord, Uncalibrated
from onnxfq.cli.artifacts import check_folder_of_files, write_artifacts
from onnxfq.cli.command_line import command_line
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.options import (
    ACCURACY_PANEL,
    BuildChoice,
    CustomOpsOption,
    GivenOption,
    ModelArgument,
    MomentsOption,
    OutputOption,
    PromiseOptions,
    RayOption,
    RecipeChanges,
    RecipesOption,
    StatisticsOption,
    TimeOption,
    describe_gpus,
)
from onnxfq.cli.recipe_outputs import show_recipes
from onnxfq.cli.run_options import Running
from onnxfq.support.files import check_writable, write_text

OFF = "off"
"""Word of --repair for no remedy at all."""


def quantize(
    model: ModelArgument,
    output: OutputOption,
    data: OptionalDataOption = None,
    statistics: StatisticsOption = None,
    moments: MomentsOption = None,
    encodings: GivenOption = None,
    uncalibrated: Annotated[
        Uncalibrated,
        typer.Option(help="Without data, stop at activations that --encodings lacks, or keep them in float."),
    ] = "error",
    *,
    recipe: RecipesOption = None,
    changes: RecipeChanges,
    custom_ops: CustomOpsOption = None,
    float_type: Annotated[
        FloatName,
        typer.Option(
            "--float", metavar="fp32|fp16|bf16", help="Set the precision of operators that stay in float."
        ),
    ] = "fp32",
    float_io: Annotated[
        bool, typer.Option("--float-io", help="Cast inputs and outputs to the type of --float too.")
    ] = False,
    promise: PromiseOptions,
    repair: Annotated[
        str,
        typer.Option(
            metavar="off|auto|thorough|DB",
            help="Try remedies; also those that cost speed if outputs are below DB (auto: 20); "
            "thorough has no time limit.",
            rich_help_panel=ACCURACY_PANEL,
        ),
    ] = REPAIR_AUTO,
    runtime: Annotated[
        str | None,
        typer.Option(metavar="onnxruntime==X", help="Write opset and IR version for this release, or fail."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML report."),
    ] = None,
    thumbnails: Annotated[
        bool,
        typer.Option("--thumbnails", help="Show pictures of the worst samples in the report: your data."),
    ] = False,
    ray: RayOption = None,
    time: TimeOption = False,
    building: BuildChoice,
    artifacts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write plan, statistics, encodings, result and fake-quant model to this folder.",
        ),
    ] = None,
    running: Running,
    printer: Printing,
) -> None:
    """Quantize MODEL, compare it with the float model and write it with Q/DQ or fake-quant nodes.

    --data is optional with --statistics or --encodings, and for recipes that observe nothing.

    Several --recipe observe the data once, write MODEL.RECIPE.onnx each into the folder OUT, and print one
    table.
    """
    from onnxfq import pipeline
    from onnxfq.documents.cast_plan import FloatOptions
    from onnxfq.documents.timing import QUANTIZED
    from onnxfq.errors import OnnxfqError
    from onnxfq.graph.io.data_paths import model_bytes
    from onnxfq.remedies.candidate import Sources
    from onnxfq.report.record import quantize_record
    from onnxfq.report.text import quantize_summary
    from onnxfq.stages.options import QuantizeOptions
    from onnxfq.tools.build_written import build_written
    from onnxfq.tools.time_models import time_models

    if report is not None:
        check_writable(report)
    if thumbnails and (report is None or len(recipe or ()) > 1):
        raise typer.BadParameter("--thumbnails is for the report of one recipe; give --report too")
    if artifacts is not None:
        check_folder_of_files(artifacts)
    chosen = [replace(changes, recipe=name).load() for name in recipe or [DEFAULT_RECIPE]]
    if time and data is None:
        raise typer.BadParameter("--time needs a sample; give --data")
    if building.shape and not building.build:
        raise typer.BadParameter("--shape needs --build; add it")
    build = None if building.options is None else replace(building.options, gpus=tuple(promise.gpu or ()))
    if float_io and float_type == "fp32":
        raise typer.BadParameter("--float-io needs --float fp16 or bf16; inputs and outputs are fp32 already")
    wanted = _read_repair(repair)
    sources = Sources(statistics, moments, encodings, uncalibrated)
    accuracy = replace(promise, repair=wanted)
    for line in describe_gpus(promise.gpu):
        printer.note(line)
    with running.progress(printer) as options:
        how = replace(
            QuantizeOptions.of(options),
            floats=FloatOptions(float_type, float_io),
            runtime=runtime,
            gpus=tuple(promise.gpu or ()),
            ray=ray,
        )
        given = (model, data, output)
        if len(chosen) == 1:
            result = pipeline.quantize(
                *given, recipe=chosen[0], sources=sources, accuracy=accuracy, options=how
            )
        else:
            outcomes = pipeline.quantize(
                *given, recipe=chosen, sources=sources, accuracy=accuracy, options=how
            )
    if len(chosen) > 1:
        show_recipes(model, outcomes, options, printer, time, build, report, artifacts)
        return
    if time:  # without the thread that shows progress
        timing = time_models(model, {QUANTIZED: result.qdq}, result.samples[0], options.threads)
        evaluation = result.evaluation.model_copy(update={"timing": timing})
        result = replace(result, evaluation=evaluation)
    built = None
    if build is not None:
        try:
            built = build_written(result.qdq, result.recipe.target, result.samples, build, options.threads)
        except OnnxfqError as error:
            raise type(error)(f"{output} is written, but not built: {error}") from None
    sizes = model_bytes(model), model_bytes(output)
    asked = printer.as_json or report is not None or artifacts is not None
    record = quantize_record(result, sizes, command_line(), built, thumbnails) if asked else None
    if report is not None and record is not None:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need

        write_text(report, render_page([(model.stem, record)]))
    if artifacts is not None and record is not None:  # last: a folder cannot wait for the other files
        write_artifacts(artifacts, [(model, result, record)])
    printer.report(record, quantize_summary(result, sizes), *(built.lines() if built is not None else ()))
    printer.wrote(output, report, artifacts)


def _read_repair(text: str) -> float | RepairWord | None:
    """Return the word or the SQNR in dB of --repair; None for off."""
    if text == OFF:
        return None
    if text == REPAIR_AUTO or text == THOROUGH:
        return text
    try:
        wanted = float(text)
    except ValueError:
        wanted = math.nan
    if not math.isfinite(wanted):
        raise typer.BadParameter(f"--repair takes off, auto, thorough or a number of dB, got {text!r:.40}")
    return wanted

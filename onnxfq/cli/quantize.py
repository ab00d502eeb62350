"""`onnxfq quantize`: all stages in a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxfq.choices import REPAIR_AUTO, THOROUGH, FloatName, RepairWord, Uncalibrated
from onnxfq.cli.artifacts import artifact_paths
from onnxfq.cli.command_line import command_line
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.options import (
    ACCURACY_PANEL,
    ChosenRecipe,
    CustomOpsOption,
    GivenOption,
    ModelArgument,
    MomentsOption,
    OutputOption,
    PromiseOptions,
    RayOption,
    StatisticsOption,
)
from onnxfq.cli.run_options import Running
from onnxfq.errors import OutputError
from onnxfq.support.files import check_writable, replace_folder, write_text

if TYPE_CHECKING:
    from onnxfq import pipeline
    from onnxfq.report.record import ResultRecord


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
    recipe: ChosenRecipe,
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
    ray: RayOption = None,
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
    """
    from onnxfq import pipeline
    from onnxfq.documents.cast_plan import FloatOptions
    from onnxfq.graph.io.data_paths import model_bytes
    from onnxfq.remedies.candidate import Sources
    from onnxfq.report.record import quantize_record
    from onnxfq.report.text import quantize_summary
    from onnxfq.stages.options import QuantizeOptions

    if report is not None:
        check_writable(report)
    if artifacts is not None:
        _check_folder(artifacts)
    chosen = recipe.load()
    if float_io and float_type == "fp32":
        raise typer.BadParameter("--float-io needs --float fp16 or bf16; inputs and outputs are fp32 already")
    wanted = _read_repair(repair)
    with running.progress(printer) as options:
        result = pipeline.quantize(
            model,
            data,
            output,
            recipe=chosen,
            sources=Sources(statistics, moments, encodings, uncalibrated),
            accuracy=replace(promise, repair=wanted),
            options=replace(
                QuantizeOptions.of(options),
                floats=FloatOptions(float_type, float_io),
                runtime=runtime,
                ray=ray,
            ),
        )
    sizes = model_bytes(model), model_bytes(output)
    asked = printer.as_json or report is not None or artifacts is not None
    record = quantize_record(result, sizes, command_line()) if asked else None
    if report is not None and record is not None:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need

        write_text(report, render_page([(model.stem, record)]))
    if artifacts is not None and record is not None:  # last: a folder cannot wait for the other files
        _write_artifacts(result, record, artifacts, model)
    printer.report(record, quantize_summary(result, sizes))
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


def _check_folder(folder: Path) -> None:
    """Raise OutputError if `folder` can neither be created nor written to."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder")
    check_writable(folder / "any" if folder.exists() else folder)


def _write_artifacts(
    result: pipeline.QuantizeResult, record: ResultRecord, folder: Path, model: Path
) -> None:
    """Write all artifacts: a new folder appears as a whole."""
    from onnxfq.support.records import write_document

    with nullcontext(folder) if folder.exists() else replace_folder(folder) as made:
        paths = artifact_paths(made, model)
        _fill(result, paths)
        write_document(paths["result"], record)


def _fill(result: pipeline.QuantizeResult, paths: Mapping[str, Path]) -> None:
    from onnxfq.graph.io.save import save
    from onnxfq.support.records import write_document

    result.plan.save(paths["plan"])
    result.statistics.save(paths["statistics"])
    result.encodings.save(paths["encodings"])
    result.evaluation.save(paths["evaluation"])
    if result.floats is not None:
        write_document(paths["floats"], result.floats)
    save(result.simulation, paths["simulation"])
    done = result.equalization
    if done is not None and done.changed:
        save(result.model.proto, paths["equalized"])

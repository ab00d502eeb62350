"""`onnxfq quantize`: all stages in a row."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxfq import pipeline
from onnxfq.cli.artifacts import artifact_paths
from onnxfq.cli.command_line import command_line
from onnxfq.cli.console import say, show_progress
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.notes import show_notes
from onnxfq.cli.options import (
    ACCURACY_PANEL,
    BATCH,
    BatchOption,
    BiasCorrectionOption,
    CalibratorOption,
    CustomOpsOption,
    DeviceOption,
    EqualizeOption,
    ExactOption,
    FallbackOption,
    GivenOption,
    JsonOption,
    KeepOption,
    LabelsOption,
    MaxDropOption,
    MetricOption,
    MinSqnrOption,
    MissingOption,
    ModelArgument,
    OptionalDataOption,
    OutputOption,
    QuietOption,
    RecipeOption,
    RequantizeOption,
    RoundingOption,
    RuntimeOption,
    SmoothOption,
    StatisticsOption,
    ThreadsOption,
    WeightBitsOption,
    choose_recipe,
    read_promise,
)
from onnxfq.data import DataOptions
from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.documents.recipe import DEFAULT_RECIPE
from onnxfq.documents.sensitivity import FLOAT
from onnxfq.errors import OutputError
from onnxfq.graph.io.data_paths import model_bytes
from onnxfq.graph.io.save import save
from onnxfq.numerics.float_types import FloatName
from onnxfq.report.record import ResultRecord, quantize_record
from onnxfq.report.text import quantize_summary
from onnxfq.stages.protect import PROTECT_DB
from onnxfq.support.files import check_writable, replace_folder, write_text
from onnxfq.support.records import to_json, write_document


@with_data_options
def quantize(
    model: ModelArgument,
    output: OutputOption,
    described: DataOptions,
    data: OptionalDataOption = None,
    statistics: StatisticsOption = None,
    encodings: GivenOption = None,
    missing: MissingOption = "stop",
    recipe: RecipeOption = DEFAULT_RECIPE,
    calibrator: CalibratorOption = None,
    rounding: RoundingOption = None,
    equalize: EqualizeOption = None,
    smooth: SmoothOption = None,
    bias_correction: BiasCorrectionOption = None,
    keep_existing: KeepOption = False,
    requantize: RequantizeOption = False,
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
    min_sqnr: MinSqnrOption = None,
    max_drop: MaxDropOption = None,
    labels: LabelsOption = None,
    metric: MetricOption = None,
    weight_bits: WeightBitsOption = None,
    fallback: FallbackOption = FLOAT,
    protect: Annotated[
        str,
        typer.Option(
            metavar="none|DB",
            help="Without a promise: if outputs are below this SQNR, keep the few worst layers in float.",
            rich_help_panel=ACCURACY_PANEL,
        ),
    ] = f"{PROTECT_DB:g}",
    runtime: RuntimeOption = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML report.", show_default=False),
    ] = None,
    artifacts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write plan, statistics, encodings, result and fake-quant model to this folder.",
            show_default=False,
        ),
    ] = None,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    device: DeviceOption = "auto",
    exact: ExactOption = False,
    as_json: JsonOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what the library logs at level INFO.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Quantize MODEL, compare it with the float model and write it with Q/DQ nodes.

    --data is optional with --statistics or --encodings, and for recipes that observe nothing.
    """
    if verbose:
        show_notes(logging.INFO)
    if report is not None:
        check_writable(report)
    if artifacts is not None:
        _check_folder(artifacts)
    chosen = choose_recipe(recipe, keep_existing, requantize, equalize, smooth)
    if bias_correction is not None:
        chosen = chosen.model_copy(update={"bias_correction": bias_correction})
    if float_io and float_type == "fp32":
        raise typer.BadParameter("--float-io needs --float fp16 or bf16; inputs and outputs are fp32 already")
    promise = read_promise(min_sqnr, max_drop, labels, metric, fallback, weight_bits)
    least = _read_least(protect)
    with show_progress(batch, threads, quiet or as_json, described, device) as options:
        result = pipeline.quantize(
            model,
            data,
            output,
            recipe=chosen,
            calibrator=calibrator,
            rounding=rounding,
            statistics=statistics,
            encodings=encodings,
            missing=missing,
            runtime=runtime,
            floats=FloatOptions(float_type, float_io),
            promise=promise,
            protect=least,
            options=replace(options, exact=exact),
        )
    sizes = model_bytes(model), model_bytes(output)
    if report is not None or artifacts is not None or as_json:
        record = quantize_record(result, sizes, command_line())
    if report is not None:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need

        write_text(report, render_page([(model.stem, record)]))
    if artifacts is not None:  # last, because a folder cannot wait for the other files
        _write_artifacts(result, record, artifacts, model)
    if as_json:
        say(to_json(record))
        return
    say(quantize_summary(result, sizes), quiet)
    for written in (output, report, artifacts):
        if written is not None:
            say(f"wrote      {written}", quiet)


def _read_least(text: str) -> float | None:
    """Return the SQNR of --protect in dB; None for none."""
    try:
        least = None if text == "none" else float(text)
    except ValueError:
        least = math.nan
    if least is not None and not math.isfinite(least):
        raise typer.BadParameter(f"--protect takes a number of dB or none, got {text!r:.40}")
    return least


def _check_folder(folder: Path) -> None:
    """Raise OutputError if `folder` can neither be created nor written to."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder")
    check_writable(folder / "any" if folder.exists() else folder)


def _write_artifacts(
    result: pipeline.QuantizeResult, record: ResultRecord, folder: Path, model: Path
) -> None:
    """Write all artifacts: a new folder appears as a whole."""
    with nullcontext(folder) if folder.exists() else replace_folder(folder) as made:
        paths = artifact_paths(made, model)
        _fill(result, paths)
        write_document(paths["result"], record)


def _fill(result: pipeline.QuantizeResult, paths: Mapping[str, Path]) -> None:
    result.plan.save(paths["plan"])
    result.statistics.save(paths["statistics"])
    result.encodings.save(paths["encodings"])
    result.evaluation.save(paths["evaluation"])
    if result.floats is not None:
        write_document(paths["floats"], result.floats)
    save(result.simulation, paths["simulation"])
    done = result.plan.equalization
    if done is not None and done.changed:
        save(result.model.proto, paths["equalized"])

"""`onnxfq compare`: differences between two runtimes on one quantized model."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.cli.console import say, show_progress
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    DIFFERENT,
    BatchOption,
    DataOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    ThreadsOption,
)
from onnxfq.data import DataOptions
from onnxfq.stages.compare import FEEDS, TOLERANCE_DB
from onnxfq.stages.compare import compare as compare_runtimes
from onnxfq.stages.runners import runners

_NAMES = f"{', '.join(runners())}, or a .json file of `polygraphy run --save-outputs`."


@with_data_options
def compare(
    model: ModelArgument,
    data: DataOption,
    described: DataOptions,
    a: Annotated[
        str, typer.Option("--a", metavar="NAME", help=f"Compute with this runtime: {_NAMES}")
    ] = "onnxruntime",
    b: Annotated[str, typer.Option("--b", metavar="NAME", help="Compare with this runtime.")] = "integer",
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="DB", min=0.0, help="Report tensors with an SQNR below this."),
    ] = TOLERANCE_DB,
    feeds: Annotated[
        int, typer.Option("--feeds", min=1, help="Compare this many feeds of the data.")
    ] = FEEDS,
    as_json: JsonOption = False,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Run a Q/DQ MODEL in two runtimes and name the first tensor that differs; exit with 3 if one does."""
    with show_progress(batch, threads, quiet or as_json, described, "cpu") as options:
        result = compare_runtimes(model, data, a=a, b=b, tolerance_db=tolerance, feeds=feeds, options=options)
    say(result.model_dump_json(indent=2) if as_json else result.table(), quiet and not as_json)
    if result.first is not None:
        raise typer.Exit(DIFFERENT)

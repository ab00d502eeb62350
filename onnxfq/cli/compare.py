"""`onnxfq compare`: differences between two runtimes on one quantized model."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.choices import COMPARED_FEEDS, TOLERANCE_DB
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.options import DIFFERENT, ModelArgument
from onnxfq.cli.run_options import RunningOnCpu

_NAMES = "{runtimes}, or a .json file of `polygraphy run --save-outputs`."


def compare(
    model: ModelArgument,
    data: DataOption,
    reference: Annotated[
        str, typer.Option(metavar="NAME", help=f"Compute with this runtime: {_NAMES}")
    ] = "onnxruntime",
    candidate: Annotated[str, typer.Option(metavar="NAME", help="Compare with this runtime.")] = "integer",
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="DB", min=0.0, help="Report tensors with an SQNR below this."),
    ] = TOLERANCE_DB,
    feeds: Annotated[
        int, typer.Option("--feeds", metavar="N", min=1, help="Compare this many feeds of the data.")
    ] = COMPARED_FEEDS,
    *,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """Run a Q/DQ MODEL in two runtimes and name the first tensor that differs; exit with 3 if one does."""
    from onnxfq.tools.compare import compare as compare_runtimes

    with running.progress(printer) as options:
        result = compare_runtimes(
            model,
            data,
            a=reference,
            b=candidate,
            tolerance_db=tolerance,
            feeds=feeds,
            options=options,
        )
    printer.show(result, hidden=printer.quiet)
    if result.first is not None:
        raise typer.Exit(DIFFERENT)

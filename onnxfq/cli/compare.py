"""`onnxfq compare`: differences between two runtimes on one quantized model."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.choices import COMPARED_FEEDS, TOLERANCE_DB
from onnxfq.cli.console import DIFFERENT, Printing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.option import option
from onnxfq.cli.options import ModelArgument
from onnxfq.cli.run_options import RunningOnCpu

_REFERENCE = option(
    "NAME",
    "Compute with this runtime: {runtimes}, or a .json file of `polygraphy run --save-outputs`.",
)
_CANDIDATE = option("NAME", "Compare with this runtime.")
_TOLERANCE = option("DB", "Report tensors with an SQNR below this.", min=0.0)
_FEEDS = option("N", "Compare this many feeds of the data; a feed is what one run takes.", min=1)


def compare(
    model: ModelArgument,
    data: DataOption,
    reference: Annotated[str, _REFERENCE] = "onnxruntime",
    candidate: Annotated[str, _CANDIDATE] = "integer",
    tolerance: Annotated[float, _TOLERANCE] = TOLERANCE_DB,
    feeds: Annotated[int, _FEEDS] = COMPARED_FEEDS,
    *,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """Exits with 3 if a tensor differs."""
    from onnxfq.tools.compare import compare as compare_runtimes

    with running.progress(printer) as options:
        result = compare_runtimes(
            model,
            data,
            reference=reference,
            candidate=candidate,
            tolerance_db=tolerance,
            feeds=feeds,
            options=options,
        )
    printer.show(result, hidden=printer.quiet)
    if result.first is not None:
        raise typer.Exit(DIFFERENT)

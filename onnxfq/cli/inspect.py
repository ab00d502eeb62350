"""`onnxfq inspect`: summary of a model file, or differences between two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import DIFFERENT, PrintingAll
from onnxfq.cli.option import argument, option, refuse
from onnxfq.cli.options import ModelArgument

_TOLERANCE = option("X", "Accept scales that differ by at most this fraction.", min=0.0)


def inspect(
    model: ModelArgument,
    other: Annotated[Path | None, argument("B", "Print what differs in this model instead.")] = None,
    tolerance: Annotated[float, _TOLERANCE] = 0.0,
    *,
    printer: PrintingAll,
) -> None:
    """With B, exits with 3 if opset, placement, types, scales or zero points differ."""
    from onnxfq.tools.diff import diff_models
    from onnxfq.tools.inspect import inspect_model

    if other is None:
        refuse(tolerance, "--tolerance is for two models; give a second one, or leave it out")
        printer.show(inspect_model(model))
        return
    difference = diff_models(model, other, tolerance)
    printer.show(difference)
    if not difference.equal:
        raise typer.Exit(DIFFERENT)

"""`onnxfq diff`: differences between two quantized models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.basic_options import DIFFERENT
from onnxfq.cli.console import PrintingAll


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A quantized model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another quantized model.")],
    tolerance: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Accept scales that differ by at most this fraction.")
    ] = 0.0,
    *,
    printer: PrintingAll,
) -> None:
    """Print differences in opset, placement, types, scales, zero points; exit with 3 if there are any."""
    from onnxfq.tools.diff import diff_models

    found = diff_models(first, second, tolerance)
    printer.show(found)
    if not found.equal:
        raise typer.Exit(DIFFERENT)

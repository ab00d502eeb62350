"""`onnxfq merge-statistics`: union of statistics from several runs or machines."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.calibration.statistics import Statistics
from onnxfq.cli.console import PrintingText
from onnxfq.cli.options import OutputOption


def merge_statistics(
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Statistics from `onnxfq observe`."),
    ],
    output: OutputOption,
    *,
    printer: PrintingText,
) -> None:
    """Merge the statistics of several data sets; the order of FILEs does not matter."""
    merged = reduce(Statistics.merge, (Statistics.load(part) for part in parts))
    merged.save(output)
    printer.say(f"merged     {len(parts)} files: {len(merged.tensors)} tensors over {merged.feeds} feeds")
    printer.wrote(output)

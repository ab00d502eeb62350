"""`onnxfq merge-statistics`: union of statistics from several runs or machines."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.options import OutputOption


def merge_statistics(
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files of `onnxfq observe`, or of `onnxfq moments`."),
    ],
    output: OutputOption,
    *,
    printer: Printing,
) -> None:
    """Merge the statistics of several data sets; the order of FILEs does not matter."""
    from onnxfq.calibration.statistics import Statistics
    from onnxfq.calibration.weights.moments_file import Moments, is_moments

    if is_moments(parts[0]):
        moments = reduce(Moments.merge, map(Moments.load, parts))
        moments.save(output)
        found = {"inputs": len(moments.ranges), "samples": moments.data.samples}
    else:
        statistics = reduce(Statistics.merge, map(Statistics.load, parts))
        statistics.save(output)
        found = {"tensors": len(statistics.tensors), "feeds": statistics.feeds}
    (what, count), (of, number) = found.items()
    record = {"parts": parts, **found, "files": [output]}
    printer.report(record, f"merged     {len(parts)} files: {count} {what} over {number} {of}")
    printer.wrote(output)

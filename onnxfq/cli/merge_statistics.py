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
    from onnxfq.calibration.weights.recorded_moments import Moments, is_moments

    if is_moments(parts[0]):
        joined = reduce(Moments.merge, (Moments.load(part) for part in parts))
        joined.save(output)
        inputs, samples = len(joined.ranges), joined.data.samples
        record = {"parts": parts, "inputs": inputs, "samples": samples, "files": [output]}
        printer.report(record, f"merged     {len(parts)} files: {inputs} inputs over {samples} samples")
        printer.wrote(output)
        return
    merged = reduce(Statistics.merge, (Statistics.load(part) for part in parts))
    merged.save(output)
    tensors, feeds = len(merged.tensors), merged.feeds
    record = {"parts": parts, "tensors": tensors, "feeds": feeds, "files": [output]}
    printer.report(record, f"merged     {len(parts)} files: {tensors} tensors over {feeds} feeds")
    printer.wrote(output)

"""`onnxfq calibrate`: turn statistics into scales and zero points, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq import calibration
from onnxfq.calibrators import calibrator_by_name
from onnxfq.cli.console import say
from onnxfq.cli.options import CalibratorOption, ModelArgument, OutputOption, PlanOption, QuietOption
from onnxfq.files import check_writable
from onnxfq.graph.load import load
from onnxfq.graph.save import refuse_overwriting_input
from onnxfq.plan import Plan
from onnxfq.statistics import Statistics


def calibrate(
    model: ModelArgument,
    plan: PlanOption,
    statistics: Annotated[
        Path,
        typer.Option("--statistics", metavar="FILE", help="From `onnxfq observe`.", show_default=False),
    ],
    output: OutputOption,
    calibrator: CalibratorOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the encodings (JSON): scale and zero point of every quantized tensor."""
    refuse_overwriting_input(output, model, plan, statistics)
    check_writable(output)
    if calibrator is not None:
        calibrator_by_name(calibrator)
    planned = Plan.load(plan)
    loaded = load(model, planned.existing)
    encodings = calibration.calibrate(loaded, planned, Statistics.load(statistics), calibrator)
    encodings.save(output)
    say(f"calibrated {len(encodings.encodings)} tensors", quiet)
    say(f"wrote      {output}", quiet)

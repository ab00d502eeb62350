"""`onnxfq calibrate`: turn statistics into scales and zero points, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq import calibration
from onnxfq.calibrators import calibrator_by_name
from onnxfq.cli.console import say
from onnxfq.cli.options import CalibratorOption, ModelArgument, OutputOption, PlanOption, QuietOption
from onnxfq.files import write_text
from onnxfq.graph.data_files import check_model_output
from onnxfq.graph.load import load
from onnxfq.plan import Plan
from onnxfq.reporting.calibrator_table import calibrator_csv, calibrator_rows, calibrator_table
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
    table: Annotated[
        bool,
        typer.Option(
            "--table", help="Print each activation's range and expected SQNR under every calibrator."
        ),
    ] = False,
    table_csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write that table as CSV.", show_default=False),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the encodings (JSON): scale and zero point of every quantized tensor."""
    check_model_output(output, model, plan, statistics)
    if table_csv is not None:
        check_model_output(table_csv, model, plan, statistics, output)
    if calibrator is not None:
        calibrator_by_name(calibrator)
    decided, observed = Plan.load(plan), Statistics.load(statistics)
    loaded = load(model, decided.existing)
    encodings = calibration.calibrate(loaded, decided, observed, calibrator)
    encodings.save(output)
    if table or table_csv is not None:
        rows = calibrator_rows(decided, observed, calibrator)
        if table:
            say(calibrator_table(rows))
        if table_csv is not None:
            write_text(table_csv, calibrator_csv(rows))
    say(f"calibrated {len(encodings.encodings)} tensors", quiet)
    for written in (output, table_csv):
        if written is not None:
            say(f"wrote      {written}", quiet)

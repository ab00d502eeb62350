"""`onnxfq calibrate`: scales and zero points from statistics, without running the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.options import (
    CalibratorOption,
    GivenOption,
    ModelArgument,
    OutputOption,
    PlanOption,
    StatisticsOption,
)
from onnxfq.cli.streams import show
from onnxfq.support.files import write_text


def calibrate(
    model: ModelArgument,
    plan: PlanOption,
    output: OutputOption,
    statistics: StatisticsOption = None,
    encodings: GivenOption = None,
    calibrator: CalibratorOption = None,
    moments: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add what `--rounding gptq` gains by these moments to the table.",
        ),
    ] = None,
    table: Annotated[
        bool,
        typer.Option(
            "--table", help="Print the range and expected SQNR of each activation with every calibrator."
        ),
    ] = False,
    table_csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write that table as CSV."),
    ] = None,
    *,
    printer: Printing,
) -> None:
    """Write the encodings (JSON): scale and zero point of every quantized tensor.

    Without --statistics, --encodings must hold every activation.
    """
    from onnxfq.calibration.calibrators import Calibrator
    from onnxfq.calibration.statistics import Statistics
    from onnxfq.calibration.weights import Moments
    from onnxfq.documents.plan import Plan
    from onnxfq.graph.io.load import load
    from onnxfq.report.calibrator_table import (
        calibrator_csv,
        calibrator_rows,
        calibrator_table,
        rounding_rows,
    )
    from onnxfq.stages.planned_encodings import match_encodings
    from onnxfq.stages.zeroed_values import find_zeroed_values, warn_zeroed_values

    if statistics is None and (encodings is None or table or table_csv is not None):
        raise typer.BadParameter("calibrate needs --statistics, or --encodings that hold every activation")
    if moments is not None and not (table or table_csv is not None):
        raise typer.BadParameter("--moments is for the table; give --table or --table-csv too")
    if calibrator is not None:
        Calibrator.parse(calibrator)
    decided = Plan.load(plan)
    observed = None if statistics is None else Statistics.load(statistics)
    loaded = load(model, decided.existing)
    matched = match_encodings(loaded, decided, encodings)
    if observed is None:
        matched.refuse_missing("give statistics from `onnxfq observe` with this plan")
    found = Statistics(loaded.sha256, 0, {}) if observed is None else observed
    encoded, made = matched.encode(loaded, found, calibrator)
    warn_zeroed_values(find_zeroed_values(encoded, found, made))
    files = made.save(output)
    compared = observed is not None and (table or table_csv is not None)
    rows = calibrator_rows(matched.unknown, observed, calibrator) if observed and compared else []
    if moments is not None:
        rows += rounding_rows(loaded, encoded, made, Moments.load(moments))
    if table and not printer.as_json:
        show(calibrator_table(rows))
    if table_csv is not None:
        write_text(table_csv, calibrator_csv(rows))
    count, notes = len(made.encodings), matched.lines()
    record = {"tensors": count, "notes": notes, "table": rows, "files": files}
    printer.report(record, *notes, f"calibrated {count} tensors")
    printer.wrote(*files, table_csv)

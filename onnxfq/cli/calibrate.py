"""`onnxfq calibrate`: scales and zero points from statistics, without running the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from onnxfq.cli.console import Printer, Printing
from onnxfq.cli.option import flag, option, refuse
from onnxfq.cli.options import (
    CalibratorOption,
    GivenOption,
    ModelArgument,
    OutputOption,
    PlanOption,
    StatisticsOption,
)
from onnxfq.cli.streams import show

if TYPE_CHECKING:
    from onnxfq.documents.encodings import Encodings
    from onnxfq.documents.plan import Plan

_MOMENTS = option("FILE", "Add what `--rounding gptq` gains by these moments to the table.")
_TABLE = flag("Print the range and expected SQNR of each activation with every calibrator.", "--table")
_TABLE_CSV = option("FILE.csv", "Write that table as CSV.")
_FORM = option(
    "NAME",
    "Write another tool's encodings: {formats}; --encodings may give them in onnxfq's format.",
    "--format",
)


def calibrate(
    model: ModelArgument,
    output: OutputOption,
    plan: PlanOption,
    statistics: StatisticsOption = None,
    encodings: GivenOption = None,
    calibrator: CalibratorOption = None,
    table: Annotated[bool, _TABLE] = False,
    table_csv: Annotated[Path | None, _TABLE_CSV] = None,
    moments: Annotated[Path | None, _MOMENTS] = None,
    form: Annotated[str | None, _FORM] = None,
    *,
    printer: Printing,
) -> None:
    """OUT is a JSON file, the encodings. Without --statistics, --encodings must cover all activations."""
    from onnxfq.calibration.calibrators import Calibrator
    from onnxfq.calibration.statistics import Statistics
    from onnxfq.calibration.weights import Moments
    from onnxfq.documents.encodings import Encodings
    from onnxfq.documents.plan import Plan
    from onnxfq.interchange import read_own
    from onnxfq.quantized.existing import load_existing
    from onnxfq.report.calibrator_table import (
        calibrator_csv,
        calibrator_rows,
        calibrator_table,
        rounding_rows,
    )
    from onnxfq.stages.planned_encodings import match_encodings
    from onnxfq.stages.zeroed_values import warn_zeroed_values
    from onnxfq.support.files import write_text
    from onnxfq.support.tables import wrap_lines

    refuse(
        statistics is None and (encodings is None or table or table_csv is not None),
        "give --statistics, or --encodings that cover all activations",
    )
    refuse(
        moments is not None and not (table or table_csv is not None),
        "--moments is for the table; give --table or --table-csv too",
    )
    refuse(
        form is not None and (table or table_csv is not None),
        "--table and --table-csv are not written with --format; leave one of them out",
    )
    if calibrator is not None:
        Calibrator.parse(calibrator)
    decided = Plan.load(plan)
    if form is not None and encodings is not None and statistics is None:
        own = read_own(encodings)
        if isinstance(own, Encodings):
            _export(own, decided, form, output, printer)
            return
    observed = None if statistics is None else Statistics.load(statistics)
    loaded = load_existing(model, decided.existing)
    matched = match_encodings(loaded, decided, encodings)
    if observed is None:
        matched.refuse_missing("give statistics from `onnxfq observe` with this plan")
    found = Statistics(loaded.sha256, 0, {}) if observed is None else observed
    encoded, made = matched.encode(loaded, found, calibrator)
    warn_zeroed_values(loaded, encoded, found, made)
    if form is not None:
        _export(made, decided, form, output, printer)
        return
    files = made.save(output)
    compared = observed is not None and (table or table_csv is not None)
    rows = calibrator_rows(matched.unknown, observed, calibrator) if observed and compared else []
    if moments is not None:
        rows += rounding_rows(loaded, encoded, made, Moments.load(moments))
    if table and not printer.as_json:
        show(wrap_lines(calibrator_table(rows)))
    if table_csv is not None:
        write_text(table_csv, calibrator_csv(rows))
    count, notes = len(made.encodings), matched.lines()
    record = {"tensors": count, "notes": notes, "table": rows, "files": files}
    printer.report(record, *notes, f"calibrated {count} tensors")
    printer.wrote(*files, table_csv)


def _export(encodings: Encodings, plan: Plan, form: str, output: Path, printer: Printer) -> None:
    """Write `encodings` in the format of another tool, and list the encodings that do not fit."""
    from onnxfq.interchange import export_encodings
    from onnxfq.support.files import write_text

    written = export_encodings(encodings, plan, form)
    write_text(output, written.text)
    lines = [f"exported   {written.tensors} of {written.tensors + len(written.lost)} tensors as {form}"]
    for why in dict.fromkeys(written.lost.values()):
        names = [name for name, its in written.lost.items() if its == why]
        lines.append(f"left out   {', '.join(names)}: {why}")
    record = {"format": form, "tensors": written.tensors, "left_out": written.lost, "files": [output]}
    printer.report(record, *lines)
    printer.wrote(output)

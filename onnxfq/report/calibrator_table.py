"""What each calibrator would give each activation: its range and the noise to expect, side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from onnxfq.calibration.calibrators import Calibrator, observing_names
from onnxfq.calibration.calibrators.grid_error import range_sqnr_db
from onnxfq.calibration.calibrators.groups import group_sqnr_db, observed_ranges
from onnxfq.calibration.statistics import GroupStatistics, Statistics, TensorStatistics
from onnxfq.documents.plan import Placement, Plan
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.stages.calibrate import replace_calibrator
from onnxfq.support.tables import table_lines


@dataclass(frozen=True)
class CalibratorRow:
    """One activation under one calibrator.

    groups: how many channels or blocks have a range each; rmin and rmax are then the ends of the widest ones.
    sqnr_db: the signal to quantization noise to expect from the histogram, in dB. chosen: whether this is the
    range that `calibrate` takes; where the calibrator is `auto`, the first method whose range it took.
    """

    tensor: str
    calibrator: str
    rmin: float
    rmax: float
    sqnr_db: float
    chosen: bool
    groups: int = 1


def calibrator_rows(plan: Plan, statistics: Statistics, calibrator: str | None = None) -> list[CalibratorRow]:
    """Return a row for each activation of `plan` and each calibrator, in the plan's order.

    Equalized ones have none: no calibrator is asked. calibrator: as `calibrate` takes it. `moving_average`
    has no row where the range of each feed was not recorded, unless it is the one that is asked for: then
    StatisticsError.
    """
    rows: list[CalibratorRow] = []
    chosen = None if calibrator is None else Calibrator.parse(calibrator)
    for planned in plan.activations:
        placement = replace_calibrator(planned, chosen)
        granularity = placement.spec.observed_granularity
        if placement.spec.equalized:
            continue
        if granularity == PER_TENSOR:
            rows += _rows(placement, statistics[placement.tensor])
        else:
            rows += _group_rows(placement, statistics.of_groups(placement.tensor, granularity))
    return rows


def _rows(placement: Placement, statistics: TensorStatistics) -> Iterator[CalibratorRow]:
    spec, planned = placement.spec, placement.calibrator
    wanted = planned(statistics, spec)
    chosen = None if planned.name == "auto" else planned
    for calibrator in _candidates(planned):
        unrecorded = calibrator.is_ordered and not statistics.feed_ranges.size
        if calibrator.name == "auto" or (unrecorded and calibrator != planned):
            continue
        limits = calibrator(statistics, spec)
        if chosen is None and limits == wanted:
            chosen = calibrator
        sqnr_db = range_sqnr_db(statistics, limits, spec)
        yield CalibratorRow(placement.tensor, str(calibrator), *limits, sqnr_db, calibrator == chosen)


def _group_rows(placement: Placement, groups: GroupStatistics) -> Iterator[CalibratorRow]:
    """Yield a row for each calibrator, all groups together; `auto` chooses group by group and has its own."""
    spec, planned = placement.spec, placement.calibrator
    for calibrator in _candidates(planned):
        unrecorded = calibrator.is_ordered and not len(groups.feed_ranges)
        if calibrator != planned and (calibrator.name == "auto" or unrecorded):
            continue
        rmin, rmax = observed_ranges(groups, spec, calibrator)
        ends = (float(rmin.min(initial=0.0)), float(rmax.max(initial=0.0)))
        sqnr_db = group_sqnr_db(groups, rmin, rmax, spec)
        name = str(calibrator)
        yield CalibratorRow(placement.tensor, name, *ends, sqnr_db, calibrator == planned, groups.count)


def _candidates(planned: Calibrator) -> list[Calibrator]:
    """Return every calibrator that looks at data, and the planned one."""
    return list(dict.fromkeys([*(Calibrator(name=name) for name in observing_names()), planned]))


def calibrator_table(rows: Sequence[CalibratorRow]) -> str:
    """Return the rows as a text table, the chosen ones marked by a star."""
    lines = [("tensor", "calibrator", "from", "to", "SQNR dB", "")]
    last = None
    for row in rows:
        groups = f" ({row.groups} groups)" if row.groups != 1 else ""
        tensor = "" if row.tensor == last else row.tensor + groups
        numbers = (f"{row.rmin:.6g}", f"{row.rmax:.6g}", f"{row.sqnr_db:.1f}")
        lines.append((tensor, row.calibrator, *numbers, "*" if row.chosen else ""))
        last = row.tensor
    return "\n".join(table_lines(lines, names=(0,)))


def calibrator_csv(rows: Sequence[CalibratorRow]) -> str:
    """Return the rows as CSV with a header, numbers in full."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([field.name for field in fields(CalibratorRow)])
    writer.writerows(astuple(row) for row in rows)
    return stream.getvalue()

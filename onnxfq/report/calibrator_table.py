"""Calibrators and rounding methods compared per tensor: range and expected noise."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from onnxfq.calibration.calibrators import Calibrator, observing_names
from onnxfq.calibration.calibrators.best_error import METHODS, choose_range
from onnxfq.calibration.calibrators.grid_error import range_sqnr_db
from onnxfq.calibration.calibrators.groups import calibrate_groups, group_sqnr_db
from onnxfq.calibration.statistics import GroupStatistics, Statistics, TensorStatistics
from onnxfq.calibration.weights import Moments
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import StatisticsError
from onnxfq.graph.model import Model
from onnxfq.layers.moments import layer_keys
from onnxfq.layers.round_weights import round_weights
from onnxfq.layers.weighted_layers import find_layers
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.stages.calibrate import replace_calibrator
from onnxfq.support.tables import table_lines
from onnxfq.targets.target import prepare_model


@dataclass(frozen=True)
class CalibratorRow:
    """One activation under one calibrator.

    Attributes:
        rmin: lower end of the range; with groups the lowest of all.
        rmax: upper end of the range; with groups the highest of all.
        sqnr_db: signal to quantization noise in dB, estimated from the histogram.
        chosen: whether `calibrate` uses this range; for `best_error`, the first method whose range it used.
        groups: number of channels or blocks with separate ranges.
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

    Activations whose channels are observed have no row, because no calibrator is used. `moving_average` has
    no row if the range of each feed was not recorded.

    Args:
        plan: the activations.
        statistics: of these activations.
        calibrator: overrides the plan's calibrators, as for `calibrate`.

    Raises StatisticsError if the chosen calibrator needs ranges of each feed that were not recorded.
    """
    rows: list[CalibratorRow] = []
    chosen = None if calibrator is None else Calibrator.parse(calibrator)
    for planned in plan.activations:
        placement = replace_calibrator(planned, chosen)
        granularity = placement.observed_granularity
        if placement.observes_channels:
            continue
        if granularity == PER_TENSOR:
            rows += tensor_rows(placement, statistics[placement.tensor])
        else:
            rows += _group_rows(placement, statistics.of_groups(placement.tensor, granularity))
    return rows


def tensor_rows(placement: Placement, statistics: TensorStatistics) -> list[CalibratorRow]:
    """Return a row for each calibrator of an activation with one range."""
    spec, planned = placement.spec, placement.calibrator
    ranges: dict[str, tuple[float, float]] = {}
    for calibrator in _candidates(planned):
        unrecorded = calibrator.is_ordered and not statistics.feed_ranges.size
        if calibrator.name != "best_error" and (calibrator == planned or not unrecorded):
            ranges[str(calibrator)] = calibrator(statistics, spec)
    chosen = str(planned)
    if planned.name == "best_error" and statistics.counts.size:
        names = list(METHODS)
        chosen = names[choose_range(statistics, spec, [ranges[name] for name in names])]
        ranges[chosen] = planned(statistics, spec)  # wider in 16 bits
    return [
        CalibratorRow(placement.tensor, name, *ends, range_sqnr_db(statistics, ends, spec), name == chosen)
        for name, ends in ranges.items()
    ]


def _group_rows(placement: Placement, groups: GroupStatistics) -> Iterator[CalibratorRow]:
    """Yield a row for each calibrator over all groups; `best_error` chooses per group and has its own row."""
    spec, planned = placement.spec, placement.calibrator
    for calibrator in _candidates(planned):
        unrecorded = calibrator.is_ordered and not len(groups.feed_ranges)
        if calibrator != planned and (calibrator.name == "best_error" or unrecorded):
            continue
        rmin, rmax = calibrate_groups(groups, spec, calibrator)
        ends = (float(rmin.min(initial=0.0)), float(rmax.max(initial=0.0)))
        sqnr_db = group_sqnr_db(groups, rmin, rmax, spec)
        name = str(calibrator)
        yield CalibratorRow(placement.tensor, name, *ends, sqnr_db, calibrator == planned, groups.count)


def _candidates(planned: Calibrator) -> list[Calibrator]:
    """Return every calibrator that depends on data, and the planned one."""
    return list(dict.fromkeys([*(Calibrator(name=name) for name in observing_names()), planned]))


def calibrator_table(rows: Sequence[CalibratorRow]) -> str:
    """Return the rows as a text table; stars mark the chosen ones."""
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


METHOD = "gptq"


def rounding_rows(model: Model, plan: Plan, encodings: Encodings, moments: Moments) -> list[CalibratorRow]:
    """Return two rows for each weight that `moments` can round: the nearest numbers, and METHOD.

    `calibrate` takes the nearest numbers. The rows show the SQNR of the layer's outputs.

    Args:
        model: the float model.
        plan: its weights.
        encodings: of the plan.
        moments: of the inputs of the layers.

    Raises StatisticsError for moments that do not fit the model or the plan.
    """
    layers = find_layers(prepare_model(model, plan.target), plan)[0]
    known = {
        one.placement.tensor for one in layers if all(key in moments.ranges for key in layer_keys([one]))
    }
    if not known:
        raise StatisticsError(
            f"the moments hold no input of a weight that recipe {plan.recipe} quantizes; gather them for it "
            "with `onnxfq observe --moments`"
        )
    asked = tuple(
        p.model_copy(update={"rounding": METHOD if p.tensor in known else NEAREST}) for p in plan.placements
    )
    plan = plan.model_copy(update={"placements": asked})
    made = round_weights(model, plan, encodings, (), moments=moments)
    rows = []
    for layer in made.layers:
        ways = ((NEAREST, encodings, layer.before_db), (METHOD, made.encodings, layer.after_db))
        for name, source, db in ways:
            one = source[layer.weight]
            rows.append(CalibratorRow(layer.weight, name, one.rmin, one.rmax, db, name == NEAREST))
    return rows

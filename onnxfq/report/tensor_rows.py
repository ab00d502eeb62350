"""Rows of quantized tensors: noise, histogram, grid, thresholds and channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.entropy import linear_histogram
from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise
from onnxfq.calibration.statistics import Statistics, TensorStatistics
from onnxfq.choices import FLOAT
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.layers import Range, TensorRow
from onnxfq.documents.plan import Placement, Plan, Role
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.passes.equalize import channel_factors
from onnxfq.pipeline import QuantizeResult
from onnxfq.remedies.channel_sizes import measure_channels
from onnxfq.report.calibrator_table import CalibratorRow, tensor_rows
from onnxfq.stages.zeroed_values import middle_sqnr_db


@dataclass(frozen=True)
class TensorError:
    """Error of one quantized tensor.

    Attributes:
        sqnr_db: exact for weights, estimated from the histogram for activations.
        rmin: smallest observed value.
        rmax: largest observed value.
        grid: smallest and largest number on the grid.
    """

    tensor: str
    role: Role
    encoding: Encoding
    sqnr_db: float
    rmin: float
    rmax: float
    why: str

    @property
    def grid(self) -> tuple[float, float]:
        """Smallest and largest number on the grid."""
        return self.encoding.rmin, self.encoding.rmax


def tensor_errors(
    model: Model, plan: Plan, statistics: Statistics, encodings: Encodings
) -> list[TensorError]:
    """Return a row for each placement of `plan`, in its order.

    Dynamic ones have no row, because they have no fixed grid. Tensors with scales from a file have none
    either, because they were not observed.
    """
    found = (tensor_error(model, placement, statistics, encodings) for placement in plan.placements)
    return [row for row in found if row is not None]


def tensor_error(
    model: Model, placement: Placement, statistics: Statistics, encodings: Encodings
) -> TensorError | None:
    """Return the row of one placement; None for those that `tensor_errors` leaves out."""
    observed = placement.role != "activation" or placement.tensor in statistics.tensors
    if placement.spec.dynamic or not observed:
        return None
    encoding = encodings[placement.tensor]
    if placement.role == "activation":
        seen = statistics[placement.tensor]
        sqnr_db = _estimate_sqnr_db(statistics, encoding)
        rmin, rmax = seen.rmin, seen.rmax
    else:
        values = weight_array(model, placement.tensor)
        sqnr_db = ErrorSums.from_arrays(values, encoding.fake_quantize(values)).sqnr_db
        rmin, rmax = float(np.min(values)), float(np.max(values))
    return TensorError(placement.tensor, placement.role, encoding, sqnr_db, rmin, rmax, placement.why)


def _estimate_sqnr_db(statistics: Statistics, encoding: Encoding) -> float:
    """Return the signal to noise in dB over all groups of scales."""
    if encoding.spec.equalized:
        return _estimate_channel_sqnr_db(statistics, encoding)
    groups = statistics.groups.get(encoding.tensor)
    each = [statistics[encoding.tensor]] if groups is None or not encoding.param_shape else groups.split()
    power = noise = 0.0
    scales = zip(encoding.scale_array.flat, encoding.zero_point_array.flat, strict=True)
    for seen, (scale, zero_point) in zip(each, scales, strict=True):
        density = Density.from_statistics(seen)
        power += density.power
        noise += estimate_noise(density, float(scale), float(zero_point), encoding.spec.qtype)
    return ratio_db(power, noise)


def _estimate_channel_sqnr_db(statistics: Statistics, encoding: Encoding) -> float:
    """Return the signal to noise in dB of equalized channels, which share one histogram.

    The noise is scale^2 / 12 of every value: right for values spread evenly between the numbers of the grid;
    a 0 has less.
    """
    seen = statistics[encoding.tensor]
    each = seen.finite / max(encoding.scale.size, 1)
    noise = each * float((encoding.scale_array.astype(np.float64) ** 2).sum()) / 12.0
    return ratio_db(Density.from_statistics(seen).power, noise)


BINS = 60
"""Bins of a histogram in a report."""

_CHANNELS = 96
"""Most bars of channels; of more, neighbours share a bar."""

_MOST_VALUES = 1 << 20
"""Values of a weight in its histogram; of more, an even selection."""


def quantized_tensors(result: QuantizeResult) -> tuple[TensorRow, ...]:
    """Return a row for each placement of the plan, in its order.

    Dynamic tensors, and tensors with external scales that were not observed, have no noise and no histogram.
    """
    return tuple(tensor_row(result, placement) for placement in result.plan.placements)


def all_tensors(result: QuantizeResult, read: Sequence[str]) -> tuple[TensorRow, ...]:
    """Return the rows of the plan, and a row for each other activation of `read`, which layers read in float.

    The float model runs on the samples that the result keeps, for the sizes of channels.
    """
    rows = {row.tensor: row for row in quantized_tensors(result)}
    why = {skipped.name: skipped.why for skipped in result.plan.skipped if skipped.kind == "tensor"}
    for name in read:
        if name not in rows:
            rows[name] = _float_row(result, name, why.get(name, "every layer that reads it is in float"))
    sizes = measure_channels(result.model, result.samples, read)
    rows |= {name: rows[name].model_copy(update={"sizes": known}) for name, known in sizes.items()}
    return tuple(rows.values())


def _float_row(result: QuantizeResult, tensor: str, why: str) -> TensorRow:
    """Return the row of an activation in float, with its values if they were observed."""
    row = TensorRow(tensor=tensor, role="activation", format=FLOAT, bits=32, calibrator="", why=why)
    seen = result.statistics.tensors.get(tensor)
    if seen is None or not seen.rmin < seen.rmax:
        return row
    edges = (seen.rmin, seen.rmax)
    values = {"observed": _short(edges), "edges": edges, "counts": _histogram(seen, edges)}
    return row.model_copy(update=values)


def _histogram(seen: TensorStatistics, edges: Range) -> tuple[int, ...]:
    density = Density.from_statistics(seen)
    return tuple(int(n) for n in linear_histogram(density, np.linspace(*edges, BINS + 1)))


def tensor_row(result: QuantizeResult, placement: Placement) -> TensorRow:
    """Return the row of one placement of the plan."""
    name, spec, done = placement.tensor, placement.spec, result.equalization
    by_factors = (
        [group.line() for group in done.groups if group.tensor == name and not group.why] if done else []
    )
    plain = TensorRow(
        tensor=name,
        role=placement.role,
        format=str(spec),
        bits=spec.qtype.bits,
        calibrator=_calibrator(result, placement),
        why=placement.why,
        equalization=", ".join(by_factors)
        or ("each channel has its part of the grid" if spec.equalized else ""),
    )
    error = tensor_error(result.model, placement, result.statistics, result.encodings)
    if error is None:
        return plain
    tried = _tried(result, placement)
    edges = (min(error.rmin, error.grid[0]), max(error.rmax, error.grid[1]))
    taken = next((row.calibrator for row in tried if row.chosen), "")
    chosen = plain.calibrator == "best_error" and taken
    before, after = _channels(result, placement)
    return plain.model_copy(
        update={
            "calibrator": f"{plain.calibrator}: {taken}" if chosen else plain.calibrator,
            "sqnr_db": error.sqnr_db,
            "middle_db": middle_sqnr_db(result.model, placement, result.statistics, result.encodings),
            "observed": _short((error.rmin, error.rmax)),
            "grid": _short(error.grid),
            "edges": edges,
            "counts": _counts(result, placement, edges),
            "thresholds": {row.calibrator: _short((row.rmin, row.rmax)) for row in tried},
            "channels": before,
            "equalized_channels": after,
        }
    )


def _calibrator(result: QuantizeResult, placement: Placement) -> str:
    if placement.spec.dynamic:
        return "dynamic"
    return "by channel" if placement.observes_channels else str(result.encodings[placement.tensor].calibrator)


def _tried(result: QuantizeResult, placement: Placement) -> list[CalibratorRow]:
    """Return the range of every calibrator for one calibrated range; `best_error` marks the one taken."""
    seen = result.statistics.tensors.get(placement.tensor)
    fixed = placement.calibrator.is_fixed or placement.observes_channels
    if placement.role != "activation" or seen is None or fixed:
        return []
    if placement.observed_granularity != PER_TENSOR:
        return []
    return list(tensor_rows(placement, seen))


def _counts(result: QuantizeResult, placement: Placement, edges: Range) -> tuple[int, ...]:
    if not edges[0] < edges[1]:
        return ()
    if placement.role == "activation":
        return _histogram(result.statistics[placement.tensor], edges)
    values = weight_array(result.model, placement.tensor).ravel()
    values = values[:: max(1, values.size // _MOST_VALUES)].astype(np.float64)
    return tuple(int(n) for n in np.histogram(values, BINS, edges)[0])


def _channels(result: QuantizeResult, placement: Placement) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the largest magnitudes of channels as observed, and divided by their factors."""
    found = result.statistics.channels.get(placement.tensor)
    if found is None or not placement.spec.equalized or not len(found):
        return (), ()
    top = np.maximum(np.abs(found).max(axis=1), 0.0).astype(np.float64)
    top[~np.isfinite(top)] = 0.0
    factors = channel_factors(result.encodings[placement.tensor]).astype(np.float64)
    return _bars(top), _bars(top / factors)


def _bars(values: NDArray[np.float64]) -> tuple[float, ...]:
    parts = np.array_split(values, min(_CHANNELS, values.size))
    return tuple(float(f"{part.max():.4g}") for part in parts)


def _short(ends: tuple[float, float]) -> Range:
    """Return two ends with the digits that a report shows."""
    return float(f"{ends[0]:.5g}"), float(f"{ends[1]:.5g}")

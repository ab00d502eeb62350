"""Rows of tensors: noise, histogram, grid, thresholds and channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.entropy import linear_histogram
from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise
from onnxfq.calibration.statistics import Statistics, TensorStatistics
from onnxfq.choices import FLOAT
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.layers import Range, TensorRow
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.layers.channel_statistics import measure_channels
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.passes.equalize import channel_factors
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.calibrator_table import CalibratorRow, tensor_rows
from onnxfq.stages.zeroed_values import middle_sqnr_db

BINS = 60
"""Bins of a histogram in a report."""

_CHANNELS = 96
"""Most bars of channels; of more, neighbours share a bar."""

_MOST_VALUES = 1 << 20
"""Values of a weight in its histogram; of more, an even selection."""


def quantized_tensors(
    model: Model, plan: Plan, statistics: Statistics, encodings: Encodings
) -> tuple[TensorRow, ...]:
    """Return a row for each placement of `plan`, in its order.

    Dynamic tensors, and tensors with external scales that were not observed, have no noise and no histogram.
    """
    return tuple(tensor_row(model, placement, statistics, encodings) for placement in plan.placements)


def all_tensors(result: QuantizeResult, read: Sequence[str]) -> tuple[TensorRow, ...]:
    """Return the rows of the plan, and a row for each other activation of `read`, which layers read in float.

    The float model runs on the samples that the result keeps, for the sizes of channels.
    """
    stages = result.model, result.plan, result.statistics, result.encodings
    rows = {row.tensor: row for row in quantized_tensors(*stages)}
    why = {skipped.name: skipped.why for skipped in result.plan.skipped if skipped.kind == "tensor"}
    for name in read:
        if name not in rows:
            rows[name] = _float_row(result, name, why.get(name, "every layer that reads it is in float"))
    changes: dict[str, dict[str, Any]] = {
        name: {"sizes": sizes}
        for name, sizes in measure_channels(result.model, result.samples, read, result.threads).items()
    }
    for group in result.equalization.groups if result.equalization is not None else ():
        if group.tensor in rows and not group.why:
            changes.setdefault(group.tensor, {})["equalization"] = group.line()
    return tuple(row.model_copy(update=changes.get(name, {})) for name, row in rows.items())


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


def tensor_row(model: Model, placement: Placement, statistics: Statistics, encodings: Encodings) -> TensorRow:
    """Return the row of one placement of a plan.

    The noise is exact for weights, and estimated from the histogram for activations.
    """
    name, spec = placement.tensor, placement.spec
    row = TensorRow(
        tensor=name,
        role=placement.role,
        format=str(spec),
        bits=spec.qtype.bits,
        calibrator="dynamic" if spec.dynamic else _calibrator(placement, encodings[name]),
        why=placement.why,
        equalization="each channel has its part of the grid" if spec.equalized else "",
    )
    if spec.dynamic or (placement.role == "activation" and name not in statistics.tensors):
        return row
    return row.model_copy(update=_measured(model, placement, statistics, encodings))


def _measured(
    model: Model, placement: Placement, statistics: Statistics, encodings: Encodings
) -> dict[str, Any]:
    """Return the fields of a row that come from values."""
    encoding = encodings[placement.tensor]
    grid = (encoding.rmin, encoding.rmax)
    if placement.role == "activation":
        seen = statistics[placement.tensor]
        observed, sqnr_db = (seen.rmin, seen.rmax), _estimate_sqnr_db(statistics, encoding)
    else:
        values = weight_array(model, placement.tensor)
        sqnr_db = ErrorSums.from_arrays(values, encoding.fake_quantize(values)).sqnr_db
        observed = float(np.min(values)), float(np.max(values))
    edges = (min(observed[0], grid[0]), max(observed[1], grid[1]))
    counts: tuple[int, ...] = ()
    if edges[0] < edges[1]:
        counts = _histogram(seen, edges) if placement.role == "activation" else _count(values, edges)
    tried = _tried(placement, statistics)
    calibrator = _calibrator(placement, encoding)
    taken = next((row.calibrator for row in tried if row.chosen), "")
    before, after = _channels(encoding, statistics)
    return {
        "calibrator": f"{calibrator}: {taken}" if calibrator == "best_error" and taken else calibrator,
        "sqnr_db": sqnr_db,
        "middle_db": middle_sqnr_db(model, placement, statistics, encodings),
        "observed": _short(observed),
        "grid": _short(grid),
        "edges": edges,
        "counts": counts,
        "thresholds": {row.calibrator: _short((row.rmin, row.rmax)) for row in tried},
        "channels": before,
        "equalized_channels": after,
    }


def _calibrator(placement: Placement, encoding: Encoding) -> str:
    return "by channel" if placement.observes_channels else str(encoding.calibrator)


def _tried(placement: Placement, statistics: Statistics) -> list[CalibratorRow]:
    """Return the range of every calibrator for one calibrated range; `best_error` marks the one taken."""
    fixed = placement.calibrator.is_fixed or placement.observes_channels
    if placement.role != "activation" or fixed or placement.observed_granularity != PER_TENSOR:
        return []
    return tensor_rows(placement, statistics[placement.tensor])


def _count(values: NDArray[Any], edges: Range) -> tuple[int, ...]:
    values = values.ravel()[:: max(1, values.size // _MOST_VALUES)].astype(np.float64)
    return tuple(int(n) for n in np.histogram(values, BINS, edges)[0])


def _channels(encoding: Encoding, statistics: Statistics) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the largest magnitudes of channels as observed, and divided by their factors."""
    ends = statistics.channels.get(encoding.tensor)
    if ends is None or not encoding.spec.equalized or not len(ends):
        return (), ()
    top = np.maximum(np.abs(ends).max(axis=1), 0.0).astype(np.float64)
    top[~np.isfinite(top)] = 0.0
    return _bars(top), _bars(top / channel_factors(encoding).astype(np.float64))


def _bars(values: NDArray[np.float64]) -> tuple[float, ...]:
    parts = np.array_split(values, min(_CHANNELS, values.size))
    return tuple(float(f"{part.max():.4g}") for part in parts)


def _short(ends: tuple[float, float]) -> Range:
    """Return two ends with the digits that a report shows."""
    return float(f"{ends[0]:.5g}"), float(f"{ends[1]:.5g}")


def _estimate_sqnr_db(statistics: Statistics, encoding: Encoding) -> float:
    """Return the signal to noise in dB over all groups of scales."""
    groups = statistics.groups.get(encoding.tensor)
    if encoding.spec.equalized or (groups is None and encoding.param_shape):
        return _estimate_channel_sqnr_db(statistics, encoding)
    each = [statistics[encoding.tensor]] if groups is None or not encoding.param_shape else groups.split()
    power = noise = 0.0
    scales = zip(encoding.scale.flat, encoding.zero_point.flat, strict=True)
    for seen, (scale, zero_point) in zip(each, scales, strict=True):
        density = Density.from_statistics(seen)
        power += density.power
        noise += estimate_noise(density, float(scale), float(zero_point), encoding.spec.qtype)
    return ratio_db(power, noise)


def _estimate_channel_sqnr_db(statistics: Statistics, encoding: Encoding) -> float:
    """Return the signal to noise in dB of channels that share one histogram.

    The noise is scale^2 / 12 of every value: right for values spread evenly between the numbers of the grid;
    a 0 has less.
    """
    seen = statistics[encoding.tensor]
    each = seen.finite / max(encoding.scale.size, 1)
    noise = each * float((encoding.scale.astype(np.float64) ** 2).sum()) / 12.0
    return ratio_db(Density.from_statistics(seen).power, noise)

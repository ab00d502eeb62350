"""Rows of quantized tensors: noise, histogram, grid, thresholds and channels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.grid_error import Density
from onnxfq.calibration.calibrators.rebinning import linear_histogram
from onnxfq.documents.layers import Range, TensorRow
from onnxfq.documents.plan import Placement
from onnxfq.graph.constants import weight_array
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.passes.equalize import channel_factors
from onnxfq.pipeline import QuantizeResult
from onnxfq.report.calibrator_table import CalibratorRow, tensor_rows
from onnxfq.report.tensor_errors import tensor_error
from onnxfq.stages.lost_values import middle_sqnr_db

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


def tensor_row(result: QuantizeResult, placement: Placement) -> TensorRow:
    """Return the row of one placement of the plan."""
    name, spec, done = placement.tensor, placement.spec, result.plan.equalization
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
    before, after = _channels(result, placement)
    return plain.model_copy(
        update={
            "calibrator": f"auto: {taken}" if plain.calibrator == "auto" and taken else plain.calibrator,
            "sqnr_db": error.sqnr_db,
            "middle_db": middle_sqnr_db(placement, result.statistics, result.encodings),
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
    return "by channel" if placement.spec.equalized else str(result.encodings[placement.tensor].calibrator)


def _tried(result: QuantizeResult, placement: Placement) -> list[CalibratorRow]:
    """Return the range of every calibrator for one calibrated range; `auto` marks the one that it took."""
    seen = result.statistics.tensors.get(placement.tensor)
    fixed = placement.calibrator.is_fixed or placement.spec.equalized
    if placement.role != "activation" or seen is None or fixed:
        return []
    if placement.spec.observed_granularity != PER_TENSOR:
        return []
    return list(tensor_rows(placement, seen))


def _counts(result: QuantizeResult, placement: Placement, edges: Range) -> tuple[int, ...]:
    if not edges[0] < edges[1]:
        return ()
    if placement.role == "activation":
        density = Density.from_statistics(result.statistics[placement.tensor])
        return tuple(int(n) for n in linear_histogram(density, np.linspace(*edges, BINS + 1)))
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

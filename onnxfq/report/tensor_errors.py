"""Error rows of each quantized tensor, for all reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise
from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan, Role
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.numerics.metrics import ErrorSums, ratio_db


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

"""How well each quantized tensor is represented: the rows of every report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfq.calibration.calibrators.grid_error import Density, expected_noise
from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan, Role
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.numerics.metrics import ErrorSums, ratio_db


@dataclass(frozen=True)
class TensorError:
    """One quantized tensor. sqnr_db: exact for weights, expected from the histogram for activations.

    rmin, rmax: observed range. grid: the smallest and largest number that the grid holds.
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

    Dynamic ones have none, for no grid is theirs, nor have those whose scale a file gave: nothing observed
    them.
    """
    return [
        _row(model, placement, statistics, encodings[placement.tensor])
        for placement in plan.placements
        if not placement.spec.dynamic
        and (placement.role == "weight" or placement.tensor in statistics.tensors)
    ]


def _row(model: Model, placement: Placement, statistics: Statistics, encoding: Encoding) -> TensorError:
    if placement.role == "activation":
        seen = statistics[placement.tensor]
        sqnr_db = _expected(statistics, encoding)
        rmin, rmax = seen.rmin, seen.rmax
    else:
        values = weight_array(model, placement.tensor)
        sqnr_db = ErrorSums.of(values, encoding.fake_quantize(values)).sqnr_db
        rmin, rmax = float(np.min(values)), float(np.max(values))
    return TensorError(placement.tensor, placement.role, encoding, sqnr_db, rmin, rmax, placement.why)


def _expected(statistics: Statistics, encoding: Encoding) -> float:
    """Return the signal to noise in dB over all groups that have a scale each."""
    if encoding.spec.equalized:
        return _expected_of_channels(statistics, encoding)
    groups = statistics.groups.get(encoding.tensor)
    each = [statistics[encoding.tensor]] if groups is None or not encoding.param_shape else groups.each()
    power = noise = 0.0
    scales = zip(encoding.scale_array.flat, encoding.zero_point_array.flat, strict=True)
    for seen, (scale, zero_point) in zip(each, scales, strict=True):
        density = Density.of(seen)
        power += density.power
        noise += expected_noise(density, float(scale), float(zero_point), encoding.spec.qtype)
    return ratio_db(power, noise)


def _expected_of_channels(statistics: Statistics, encoding: Encoding) -> float:
    """Return the same of equalized channels, of which there is one histogram: scale^2 / 12 of every value.

    That is the noise of values spread evenly between the numbers of the grid; a 0 has less.
    """
    seen = statistics[encoding.tensor]
    each = seen.finite / max(encoding.scale.size, 1)
    noise = each * float((encoding.scale_array.astype(np.float64) ** 2).sum()) / 12.0
    return ratio_db(Density.of(seen).power, noise)

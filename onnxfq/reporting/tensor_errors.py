"""How well each quantized tensor is represented: the rows of every report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfq.calibrators.grid_error import expected_sqnr_db
from onnxfq.encoding import Encoding, Encodings
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.metrics import ErrorSums
from onnxfq.plan import Placement, Plan, Role
from onnxfq.statistics import Statistics


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
    """Return a row for each placement of `plan`, in its order."""
    return [_row(model, placement, statistics, encodings[placement.tensor]) for placement in plan.placements]


def _row(model: Model, placement: Placement, statistics: Statistics, encoding: Encoding) -> TensorError:
    if placement.role == "activation":
        seen = statistics[placement.tensor]
        scale, zero_point = float(encoding.scale_array), int(encoding.zero_point_array)
        sqnr_db = expected_sqnr_db(seen, scale, zero_point, encoding.spec.qtype)
        rmin, rmax = seen.rmin, seen.rmax
    else:
        values = weight_array(model, placement.tensor)
        sqnr_db = ErrorSums.of(values, encoding.fake_quantize(values)).sqnr_db
        rmin, rmax = float(np.min(values)), float(np.max(values))
    return TensorError(placement.tensor, placement.role, encoding, sqnr_db, rmin, rmax, placement.why)

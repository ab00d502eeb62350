"""How well each quantized tensor is represented: the rows of every report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfq.calibrators.grid_error import expected_sqnr_db
from onnxfq.encoding import Encoding, Encodings
from onnxfq.errors import PlanError
from onnxfq.graph.constants import initializer_array
from onnxfq.graph.model import Model
from onnxfq.metrics import ErrorSums
from onnxfq.numerics import fake_quantize
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
        values = initializer_array(model.proto, placement.tensor)
        if values is None:
            raise PlanError(
                f"the plan calls {placement.tensor!r} a weight, but it is no constant of the model"
            )
        spec = encoding.spec
        rounded = fake_quantize(
            values,
            encoding.scale_array,
            encoding.zero_point_array,
            qtype=spec.qtype,
            **spec.blocks,
        )
        sqnr_db = ErrorSums.of(values, rounded).sqnr_db
        rmin, rmax = float(np.min(values)), float(np.max(values))
    return TensorError(placement.tensor, placement.role, encoding, sqnr_db, rmin, rmax, placement.why)

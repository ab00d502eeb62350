"""`Grid`: the numbers that each element of a weight matrix may be rounded to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import QType

Matrices = NDArray[np.float64]
"""Weights as matrices [groups, outputs, inputs], or matrices of their inputs [groups, inputs, inputs]."""


@dataclass(frozen=True)
class Grid:
    """Number format with scale and zero point of each element, float32 [groups, outputs, inputs]."""

    qtype: QType
    scale: NDArray[np.float32]
    zero_point: NDArray[np.float32]

    def take(self, order: NDArray[np.int64]) -> Grid:
        """Return the grid with the inputs of each group in `order`, [groups, inputs]."""
        at = order[:, None, :]
        scale, zero_point = (np.take_along_axis(a, at, axis=2) for a in (self.scale, self.zero_point))
        return Grid(self.qtype, scale, zero_point)

    def round(self, values: Matrices, column: int | slice = slice(None)) -> Matrices:
        """Return `values`, of all inputs or of those in `column`, at the nearest numbers of the grid."""
        scale, zero_point = self.scale[..., column], self.zero_point[..., column]
        found = fake_quantize(
            values.astype(np.float32).reshape(-1),
            scale.reshape(-1),
            zero_point.reshape(-1),
            qtype=self.qtype,
            granularity=Granularity(axis=0),
        )
        return found.reshape(values.shape).astype(np.float64)

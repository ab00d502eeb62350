"""`WeightGrid`: the numbers that each element of a weight matrix may be rounded to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.affine import round_to_grid
from onnxfq.numerics.qtypes import QType

Matrices = NDArray[np.float64]
"""Weights as matrices [groups, outputs, inputs], or matrices of their inputs [groups, inputs, inputs]."""

Floats = NDArray[np.float32] | NDArray[np.float64]

AT_ONCE = 1 << 24
"""Elements of a weight that are in memory in float64."""


@dataclass(frozen=True)
class WeightGrid:
    """Number format with scale and zero point of each element.

    Attributes:
        qtype: the number format.
        scale: float32 [groups, outputs, inputs].
        zero_point: of the same shape, or a scalar.
    """

    qtype: QType
    scale: NDArray[np.float32]
    zero_point: NDArray[np.float32]

    def sort(self, part: slice, at: NDArray[np.int64]) -> WeightGrid:
        """Return the grid [groups, inputs, outputs] of the outputs in `part`, with the inputs in order `at`.

        Args:
            part: of the outputs.
            at: [groups, 1, inputs].
        """

        def sorted_part(params: NDArray[np.float32]) -> NDArray[np.float32]:
            if not params.ndim:
                return params
            return np.ascontiguousarray(np.take_along_axis(params[:, part], at, axis=2).swapaxes(1, 2))

        return WeightGrid(self.qtype, sorted_part(self.scale), sorted_part(self.zero_point))

    def round(self, values: Floats, at: tuple[slice, int] | EllipsisType = ...) -> NDArray[np.float32]:
        """Return `values`, of all elements or of those in `at`, at the nearest numbers of the grid."""
        zero_point = self.zero_point[at] if self.zero_point.ndim else self.zero_point
        return round_to_grid(values.astype(np.float32, copy=False), self.scale[at], zero_point, self.qtype)


def split_outputs(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield the outputs of a weight [groups, outputs, inputs] in parts of about AT_ONCE elements."""
    groups, outputs, inputs = shape
    step = max(AT_ONCE // max(groups * inputs, 1), 1)
    for start in range(0, outputs, step):
        yield slice(start, start + step)

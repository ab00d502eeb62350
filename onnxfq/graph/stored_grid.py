"""`StoredGrid`: integers and scales of a constant in a source model, and its real values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.granularity import PER_TENSOR, Granularity, normalize_axis
from onnxfq.numerics.layout import Layout, expand_params
from onnxfq.numerics.spec import QuantSpec


@dataclass(frozen=True)
class StoredGrid:
    """A constant as integers.

    Attributes:
        steps: the numbers minus their zero points, int32, of the constant's shape.
        scale: float32, in the shape that `granularity` gives.
        granularity: of the scale.
    """

    steps: NDArray[np.int32]
    scale: NDArray[np.float32]
    granularity: Granularity = PER_TENSOR

    @property
    def values(self) -> NDArray[np.float32]:
        """The real numbers, float32."""
        return np.asarray(self.steps.astype(np.float32) * self._expand(self.scale), np.float32)

    def positive(self) -> StoredGrid:
        """Return the same numbers without negative scales, which onnxruntime's 4-bit quantizer writes."""
        turned = np.sign(self._expand(self.scale)).astype(np.int32)
        return StoredGrid(self.steps * turned, np.abs(self.scale), self.granularity)

    def transpose(self) -> StoredGrid:
        """Return the grid of the transposed matrix; blocks run along the other axis."""
        return StoredGrid(self.steps.T, self.scale.T, self.granularity.permute((1, 0)))

    def _expand(self, params: NDArray[Any]) -> NDArray[Any]:
        return expand_params(params, self.steps.shape, self.granularity)

    def scale_for(self, spec: QuantSpec) -> NDArray[np.float32] | None:
        """Return the scale in the granularity of `spec` if its type holds the steps; else None.

        A 4-bit type may lack the largest number, the 8 of a negated -8: one number of a block that is a step
        smaller costs less than rounding all numbers again.
        """
        shape, qtype = self.steps.shape, spec.grid
        most = qtype.qmax + (1 if qtype.bits == 4 else 0)
        if not qtype.qmin <= self.steps.min(initial=0) <= self.steps.max(initial=0) <= most:
            return None
        if not (self.scale > 0).all() or not np.isfinite(self.scale).all():
            return None
        if self.scale.ndim == 0:
            return np.full(Layout(spec.granularity, shape).scale_shape, self.scale, np.float32)
        return self.scale if self.granularity == spec.granularity else None


def grid_of(
    stored: NDArray[Any],
    scale: NDArray[np.float32],
    zero_point: NDArray[Any] | None,
    axis: int = 1,
    block_size: int = 0,
) -> StoredGrid:
    """Return the grid of a DequantizeLinear; the arguments are its inputs and attributes."""
    factor = np.asarray(scale, np.float32)
    offset = np.zeros((), np.int32) if zero_point is None else np.asarray(zero_point).astype(np.int32)
    if factor.size == 1 and not block_size:
        return StoredGrid(stored.astype(np.int32) - offset.reshape(()), factor.reshape(()))
    granularity = Granularity.of(normalize_axis(axis, stored.ndim), block_size)
    return StoredGrid(
        stored.astype(np.int32) - expand_params(offset, stored.shape, granularity), factor, granularity
    )

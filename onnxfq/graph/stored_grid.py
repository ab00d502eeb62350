"""Constants that a model stores as integers times scale: `StoredGrid`, `StoredScale`, `StoredWeight`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.numerics.granularity import PER_TENSOR, Granularity, normalize_axis
from onnxfq.numerics.layout import Layout, expand_params


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
        return np.asarray(self.steps.astype(np.float32) * self._elementwise_scale, np.float32)

    @property
    def _elementwise_scale(self) -> NDArray[np.float32]:
        return expand_params(self.scale, self.steps.shape, self.granularity)

    def transpose(self) -> StoredGrid:
        """Return the grid of the transposed matrix; blocks run along the other axis."""
        return StoredGrid(self.steps.T, self.scale.T, self.granularity.permute((1, 0)))

    def positive(self) -> StoredGrid:
        """Return the same numbers with scales above 0: onnxruntime's 4-bit quantizer writes negative ones."""
        turned = np.sign(self._elementwise_scale).astype(np.int32)
        return StoredGrid(self.steps * turned, make_positive(self.scale), self.granularity)

    @property
    def stored_scale(self) -> StoredScale:
        """The scale alone."""
        return StoredScale(self.scale, self.granularity, self.steps.shape)


@dataclass(frozen=True, eq=False)
class StoredScale:
    """The scale of a constant that is integers times scale in its source.

    Attributes:
        params: float32, in the shape that `granularity` gives.
        granularity: of the scale.
        shape: of the constant.
    """

    params: NDArray[np.float32]
    granularity: Granularity
    shape: tuple[int, ...]

    @property
    def elementwise(self) -> NDArray[np.float32]:
        """The scale of each element, in the shape of the constant."""
        return expand_params(self.params, self.shape, self.granularity)

    def fit(self, granularity: Granularity) -> NDArray[np.float32] | None:
        """Return the positive scales in another granularity; None if elements that share one differ."""
        if granularity == self.granularity:
            return make_positive(self.params)
        layout = Layout(granularity, self.shape)
        if self.params.size == 1:
            return make_positive(np.full(layout.scale_shape, self.params.reshape(())))
        every = np.abs(self.elementwise)
        low, high = layout.reduce(np.minimum, every, np.inf), layout.reduce(np.maximum, every, 0.0)
        return make_positive(high) if (low == high).all() else None


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A float constant with a stored scale.

    Attributes:
        tensor: the constant as it was loaded.
        scale: of its integers.
    """

    tensor: onnx.TensorProto
    scale: StoredScale


def make_positive(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scales above 0: the magnitudes of negative ones; 1 for 0, whose numbers are 0 on every grid."""
    return np.where(scale == 0, np.float32(1), np.abs(scale))


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

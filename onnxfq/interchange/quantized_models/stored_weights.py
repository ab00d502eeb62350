"""`Grid`: how a source model stores a constant, and what numbers that stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.plan import Placement
from onnxfq.numerics.affine import repeat_blocks
from onnxfq.numerics.spec import QuantSpec


@dataclass(frozen=True)
class Grid:
    """A constant as whole numbers.

    steps: the numbers minus their zero points, int32, of the constant's shape. scale: float32, rank 0, [C]
    along `axis`, or of the constant's rank with blocks of `block_size` along `axis`.
    """

    steps: NDArray[np.int32]
    scale: NDArray[np.float32]
    axis: int | None = None
    block_size: int | None = None

    @property
    def values(self) -> NDArray[np.float32]:
        """The real numbers, float32."""
        return np.asarray(self.steps.astype(np.float32) * _spread(self, self.scale), np.float32)

    def positive(self) -> Grid:
        """Return the same numbers with no negative scale, as onnxruntime's 4-bit quantizer writes them."""
        turned = np.sign(_spread(self, self.scale)).astype(np.int32)
        return Grid(self.steps * turned, np.abs(self.scale), self.axis, self.block_size)

    def transposed(self) -> Grid:
        """Return the grid of the transposed matrix; blocks run along the other axis."""
        axis = None if self.axis is None else 1 - self.axis
        return Grid(self.steps.T, self.scale.T, axis, self.block_size)

    def scale_for(self, placement: Placement) -> NDArray[np.float32] | None:
        """Return the scale in the granularity of `placement`, when its type holds the steps; else None.

        Of 4 bits it may lack the largest one, the 8 that a turned -8 is: one number of a block that comes out
        a step smaller costs less than all of them rounded anew.
        """
        spec, shape = placement.spec, self.steps.shape
        qtype = spec.grid
        most = qtype.qmax + (1 if qtype.bits == 4 else 0)
        if not qtype.qmin <= self.steps.min(initial=0) <= self.steps.max(initial=0) <= most:
            return None
        if not (self.scale > 0).all() or not np.isfinite(self.scale).all():
            return None
        if self.scale.ndim == 0:
            return np.full(spec.granularity.param_shape(shape), self.scale, np.float32)
        return self.scale if _same_groups(self, spec) else None


def grid_of(
    stored: NDArray[Any],
    scale: NDArray[np.float32],
    zero_point: NDArray[Any] | None,
    axis: int = 1,
    block_size: int = 0,
) -> Grid:
    """Return the grid that a DequantizeLinear reads; the arguments are its inputs and attributes."""
    factor = np.asarray(scale, np.float32)
    offset = np.zeros((), np.int32) if zero_point is None else np.asarray(zero_point).astype(np.int32)
    at = axis + stored.ndim if axis < 0 else axis
    if factor.size == 1 and not block_size:
        return Grid(stored.astype(np.int32) - offset.reshape(()), factor.reshape(()))
    made = Grid(stored.astype(np.int32), factor, at, block_size or None)
    steps = made.steps - (offset if offset.size == 1 else _spread(made, offset).astype(np.int32))
    return Grid(steps, factor, at, block_size or None)


def rounded_grid(
    values: NDArray[Any], grid: Grid, zero_point: NDArray[Any] | None, limits: tuple[int, int]
) -> Grid:
    """Return `values` rounded as a QuantizeLinear with the scale of `grid` does it; limits: of its type."""
    ones = np.ones(values.shape, np.int32)
    units = Grid(ones, grid.scale, grid.axis, grid.block_size).values
    offset: NDArray[Any] = np.zeros((), np.float32)
    if zero_point is not None:
        offset = Grid(
            ones, np.asarray(zero_point, np.float32).reshape(grid.scale.shape), grid.axis, grid.block_size
        ).values
    steps = np.clip(np.rint(values / units) + offset, *limits) - offset
    return Grid(steps.astype(np.int32), grid.scale, grid.axis, grid.block_size)


def _same_groups(grid: Grid, spec: QuantSpec) -> bool:
    return (grid.axis, grid.block_size) == (spec.axis, spec.block_size)


def _spread(grid: Grid, params: NDArray[Any]) -> NDArray[Any]:
    """Return one number for each group of `grid` as one for each element, or as what broadcasts to that."""
    if params.ndim == 0 or grid.axis is None:
        return params.reshape(())
    if grid.block_size is None:
        return params.reshape([-1 if d == grid.axis else 1 for d in range(grid.steps.ndim)])
    return repeat_blocks(params, grid.block_size, grid.axis, grid.steps.shape[grid.axis])

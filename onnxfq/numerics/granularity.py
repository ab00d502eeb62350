"""Granularity of scales: per tensor, per axis, blocks along an axis, N-D blocks.

| granularity                    | x        | scale             | x[i, j] uses      |
|--------------------------------|----------|-------------------|-------------------|
| Granularity()                  | any      | []                | scale[()]         |
| Granularity(axis=1)            | [N, C]   | [C]               | scale[j]          |
| Granularity(1, block_size=32)  | [N, C]   | [N, ceil(C/32)]   | scale[i, j // 32] |
| Granularity(block_shape=(-1, 4)) | [N, C] | [1, ceil(C/4)]    | scale[0, j // 4]  |

The last block may be shorter than the others (ONNX opset 21). ONNX has no N-D blocks; they are AIMET's
`block_size`, and -1 is the whole axis. `onnxfq.numerics.layout` applies a granularity to a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxfq.errors import SpecError


@dataclass(frozen=True)
class Granularity:
    """Elements that share a scale, as attributes of ONNX's QuantizeLinear; by default all elements.

    Attributes:
        axis: axis with one scale per index, or, with block_size, the axis of the blocks.
        block_size: elements of a block along `axis`; blocks have size 1 along the other axes.
        block_shape: size of an N-D block along each dimension, -1 for the whole dimension.

    Raises SpecError for sizes below 1 and for attributes that exclude each other.
    """

    axis: int | None = None
    block_size: int | None = None
    block_shape: tuple[int, ...] | None = None

    __pydantic_config__ = {"extra": "forbid"}

    def __post_init__(self) -> None:
        """Raise SpecError if the attributes contradict each other."""
        blocks = self.block_shape
        if blocks is not None:
            if self.block_size is not None:
                raise SpecError("block_size and block_shape are both given; give one")
            if self.axis is not None:
                raise SpecError("block_shape covers every axis; remove axis or block_shape")
            if not blocks or any(size < 1 and size != -1 for size in blocks):
                raise SpecError(
                    "block_shape must hold a size of at least 1, or -1 for a whole axis, for each dimension, "
                    f"got {list(blocks)}"
                )
        elif self.block_size is not None:
            if self.block_size < 1:
                raise SpecError(f"block_size must be at least 1, got {self.block_size}")
            if self.axis is None:
                raise SpecError("block_size without axis; give the axis the blocks run along")

    @staticmethod
    def of(
        axis: int | None = None, block_size: int | None = None, block_shape: Sequence[int] | None = None
    ) -> Granularity:
        """Return the granularity of an operator's attributes; block_size 0, ONNX's default, means none.

        An axis given with block_shape is ignored. Raises SpecError as the constructor.
        """
        if block_shape is None:
            return Granularity(axis, block_size or None)
        return Granularity(None, block_size or None, tuple(block_shape))

    @property
    def is_blocked(self) -> bool:
        """Tell whether scales have as many dimensions as the tensor."""
        return self.block_size is not None or self.block_shape is not None

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of an ONNX node, without unset ones."""
        blocks = None if self.block_shape is None else list(self.block_shape)
        given = {"axis": self.axis, "block_size": self.block_size, "block_shape": blocks}
        return {name: value for name, value in given.items() if value is not None}

    def permute(self, order: Sequence[int]) -> Granularity:
        """Return the granularity of a transposed tensor, whose axis order[d] is axis d of this one."""
        if self.block_shape is not None:
            stored = dict(zip(order, self.block_shape, strict=True))
            return Granularity(block_shape=tuple(stored[axis] for axis in range(len(stored))))
        return self if self.axis is None else Granularity(order[self.axis], self.block_size)

    def __str__(self) -> str:
        """Return the text for reports."""
        if self.block_shape is not None:
            return f"blocks of {list(self.block_shape)}"
        if self.axis is None:
            return "per-tensor"
        return (
            f"blocks of {self.block_size} on axis {self.axis}" if self.block_size else f"per-axis {self.axis}"
        )


PER_TENSOR = Granularity()
CHANNELS = Granularity(1)
"""The channels of images, [N, C, ...]."""


def normalize_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises SpecError if it is outside [-rank, rank)."""
    if rank == 0:
        raise SpecError(f"axis {axis} is given for a scalar, which has no axes; use per-tensor")
    if not -rank <= axis < rank:
        raise SpecError(f"axis {axis} is outside a tensor of rank {rank}; give one of [{-rank}, {rank - 1}]")
    return axis + rank if axis < 0 else axis

"""Which elements of a tensor share one scale: ONNX's three granularities and N-D blocks as one frozen value.

| granularity                    | x        | scale             | x[i, j] uses      |
|--------------------------------|----------|-------------------|-------------------|
| Granularity()                  | any      | []                | scale[()]         |
| Granularity(axis=1)            | [N, C]   | [C]               | scale[j]          |
| Granularity(1, block_size=32)  | [N, C]   | [N, ceil(C/32)]   | scale[i, j // 32] |
| Granularity(block_shape=(-1, 4)) | [N, C] | [1, ceil(C/4)]    | scale[0, j // 4]  |

The last block may be shorter than the others (ONNX opset 21). ONNX has no N-D blocks; they are AIMET's
`block_size`, and -1 is the whole axis. `onnxfq.numerics.layout` computes with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxfq.errors import SpecError


@dataclass(frozen=True)
class Granularity:
    """Which elements share a scale, in the attributes of ONNX's QuantizeLinear; all of them without any.

    Args:
        axis: one scale for each index of it, or, with block_size, the axis that blocks run along.
        block_size: elements of a block along `axis`; the other axes are in blocks of 1.
        block_shape: the size of an N-D block along each dimension, -1 for the whole of it.

    Raises SpecError for sizes below 1 and for attributes that exclude each other.
    """

    axis: int | None = None
    block_size: int | None = None
    block_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Raise SpecError when the attributes do not go together."""
        blocks = self.block_shape
        if blocks is not None:
            if self.block_size is not None:
                raise SpecError("block_size and block_shape are both given; give one")
            if self.axis is not None:
                raise SpecError("block_shape speaks of every axis; remove axis, or block_shape")
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
        """Return the granularity of an operator's attributes; block_size 0 is none, as ONNX's default is.

        An axis given with block_shape has no meaning. Raises SpecError as the constructor does.
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
        """The attributes that are set, as those of an ONNX node."""
        blocks = None if self.block_shape is None else list(self.block_shape)
        given = {"axis": self.axis, "block_size": self.block_size, "block_shape": blocks}
        return {name: value for name, value in given.items() if value is not None}

    def permute(self, order: Sequence[int]) -> Granularity:
        """Return the granularity of the tensor whose axis order[d] is this one's axis d."""
        if self.block_shape is not None:
            stored = dict(zip(order, self.block_shape, strict=True))
            return Granularity(block_shape=tuple(stored[axis] for axis in range(len(stored))))
        return self if self.axis is None else Granularity(order[self.axis], self.block_size)

    def __str__(self) -> str:
        """Spell it as in a report."""
        if self.block_shape is not None:
            return f"blocks of {list(self.block_shape)}"
        if self.axis is None:
            return "per-tensor"
        return (
            f"blocks of {self.block_size} on axis {self.axis}" if self.block_size else f"per-axis {self.axis}"
        )


PER_TENSOR = Granularity()


def normalize_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises SpecError when it is outside [-rank, rank)."""
    if rank == 0:
        raise SpecError(f"axis {axis} of a scalar: it has none; use per-tensor")
    if not -rank <= axis < rank:
        raise SpecError(f"axis {axis} is outside a tensor of rank {rank}; give one of [{-rank}, {rank - 1}]")
    return axis + rank if axis < 0 else axis

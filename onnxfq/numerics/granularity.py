"""How many elements share one scale: ONNX's three granularities and N-D blocks as frozen values.

| granularity        | x            | scale             | x[i, j] uses          |
|--------------------|--------------|-------------------|-----------------------|
| PerTensor()        | any          | []                | scale[()]             |
| PerAxis(axis=1)    | [N, C]       | [C]               | scale[j]              |
| Blocked(1, 32)     | [N, C]       | [N, ceil(C/32)]   | scale[i, j // 32]     |
| BlockShape((-1, 4))| [N, C]       | [1, ceil(C/4)]    | scale[0, j // 4]      |

The last block may be shorter than the others (ONNX opset 21). ONNX has no N-D blocks; they are AIMET's
`block_size`, and -1 is the whole axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfq.errors import SpecError


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor."""

    def param_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of scale and zero point for x of `shape`: rank 0."""
        return ()

    def __str__(self) -> str:
        """Spell it as in a report."""
        return "per-tensor"


@dataclass(frozen=True)
class PerAxis:
    """One scale for each index of `axis`."""

    axis: int

    def param_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of scale and zero point for x of `shape`: [shape[axis]]."""
        return (shape[normalize_axis(self.axis, len(shape))],)

    def __str__(self) -> str:
        """Spell it as in a report."""
        return f"per-axis {self.axis}"


@dataclass(frozen=True)
class Blocked:
    """One scale for each run of `block_size` elements along `axis`; the last run may be short."""

    axis: int
    block_size: int

    def __post_init__(self) -> None:
        """Raise SpecError for a block of no elements."""
        if self.block_size < 1:
            raise SpecError(f"block_size must be at least 1, got {self.block_size}")

    def param_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of scale and zero point for x of `shape`: `axis` divided by the block, rounded up."""
        axis = normalize_axis(self.axis, len(shape))
        return tuple(-(-n // self.block_size) if d == axis else n for d, n in enumerate(shape))

    def __str__(self) -> str:
        """Spell it as in a report."""
        return f"blocks of {self.block_size} on axis {self.axis}"


@dataclass(frozen=True)
class BlockShape:
    """One scale for each N-D block: one size for each dimension, -1 for the whole of it."""

    block_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise SpecError for no sizes, or a block of no elements."""
        if not self.block_shape or any(size < 1 and size != -1 for size in self.block_shape):
            raise SpecError(
                f"block_shape must hold a size of at least 1, or -1 for a whole axis, for each dimension, "
                f"got {list(self.block_shape)}"
            )

    def param_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of scale and zero point for x of `shape`: each dimension divided by its size, rounded up."""
        if len(shape) != len(self.block_shape):
            raise SpecError(
                f"block_shape {list(self.block_shape)} must have one size for each dimension of {list(shape)}"
            )
        return tuple(1 if b == -1 else -(-n // b) for n, b in zip(shape, self.block_shape, strict=True))

    def __str__(self) -> str:
        """Spell it as in a report."""
        return f"blocks of {list(self.block_shape)}"


Granularity = PerTensor | PerAxis | Blocked | BlockShape


def open_axis(granularity: Granularity, shape: Sequence[int | str]) -> int | None:
    """Return the first axis of `shape` whose size is open and changes the number of scales; None for no such.

    An open size is anything but a number, as the name of a dimension.
    """
    pooled: set[int] = set()
    if isinstance(granularity, PerTensor):
        pooled = set(range(len(shape)))
    elif isinstance(granularity, PerAxis):
        pooled = set(range(len(shape))) - {normalize_axis(granularity.axis, len(shape))}
    elif isinstance(granularity, BlockShape):
        pooled = {d for d, block in enumerate(granularity.block_shape) if block == -1}
    return next((d for d, n in enumerate(shape) if d not in pooled and not isinstance(n, int)), None)


def normalize_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises SpecError when it is outside [-rank, rank)."""
    if rank == 0:
        raise SpecError(f"axis {axis} of a scalar: it has none; use per-tensor")
    if not -rank <= axis < rank:
        raise SpecError(f"axis {axis} is outside a tensor of rank {rank}; give one of [{-rank}, {rank - 1}]")
    return axis + rank if axis < 0 else axis

"""Layout of scales: a granularity for one tensor shape, and the index arithmetic of blocks in NumPy.

The C++ twin is param_layout.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError
from onnxfq.numerics.granularity import PER_TENSOR, Granularity, normalize_axis

Size = TypeVar("Size")


@dataclass(frozen=True)
class Layout:
    """Granularity applied to a tensor x of `shape`.

    Every method raises SpecError if the granularity does not fit the shape.
    """

    granularity: Granularity
    shape: Sequence[int]

    @staticmethod
    def match(granularity: Granularity, shape: Sequence[int], params: Sequence[int]) -> Layout:
        """Return the layout by which parameters of shape `params` apply to x of `shape`.

        | params                     | element j of x uses                                      |
        |----------------------------|----------------------------------------------------------|
        | one element, any rank      | that element                                             |
        | rank 1, with an axis       | param[j[axis]]                                           |
        | rank of x                  | param[i], i[d] = j[d] // ceil(shape[d] / params[d])      |
        | rank of x, a block_size    | the same, but blocks of block_size along the axis        |
        | rank of x, a block_shape   | param[i], i[d] = j[d] // block_shape[d], -1: whole       |

        For x of rank 1 the second and the third row agree. Raises SpecError with both shapes if they do not
        fit.
        """
        rank, axis, block_size = len(shape), granularity.axis, granularity.block_size
        exact = Layout(granularity, shape)
        if granularity.block_shape is not None:
            if tuple(params) != exact.scale_shape:
                raise _misfit(
                    params, shape, f": blocks of {list(granularity.block_shape)} need {list(exact.counts)}"
                )
            return exact
        if all(n == 1 for n in params):
            return Layout(PER_TENSOR, shape)
        if len(params) == 1 and rank != 1 and not block_size:
            if axis is None:
                raise _misfit(params, shape, " without an axis; give the axis the values run along")
            at = normalize_axis(axis, rank)
            if params[0] != shape[at]:
                raise _misfit(params, shape, f" along axis {at}; give {shape[at]} values or another axis")
            return exact
        if len(params) != rank:
            raise _misfit(
                params, shape, "; give one value, one per index of axis, or as many dimensions as x"
            )
        blocks = [max(-(-n // max(p, 1)), 1) for n, p in zip(shape, params, strict=True)]
        if axis is not None and block_size:
            blocks[normalize_axis(axis, rank)] = block_size
        for d, (n, p, block) in enumerate(zip(shape, params, blocks, strict=True)):
            if -(-n // block) != p and not (n == 0 and p <= 1):
                raise _misfit(
                    params, shape, f": dimension {d} in blocks of {block} needs {-(-n // block)} values"
                )
        sizes = (-1 if p == 1 else block for p, block in zip(params, blocks, strict=True))
        return Layout(Granularity(block_shape=tuple(sizes)), shape)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Size of a block along each dimension of x; the full size of a dimension that is not divided."""
        return _block_sizes(self.granularity, self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of blocks along each dimension of x; the last block may be short."""
        pairs = zip(self.shape, self.block_sizes, strict=True)
        return tuple(1 if block == n else -(-n // block) for n, block in pairs)

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """Shape of scale and zero point: [], [shape[axis]], or the block counts in x's rank."""
        axis = self.granularity.axis
        if self.granularity.is_blocked:
            return self.counts
        return () if axis is None else (self.shape[normalize_axis(axis, len(self.shape))],)

    def expand(self, params: ArrayLike) -> NDArray[Any]:
        """Return `params`, one number per block, expanded to x's shape; a view if possible."""
        values = np.asarray(params).reshape(self.counts)
        for d, (n, count, block) in enumerate(zip(self.shape, self.counts, self.block_sizes, strict=True)):
            if count > 1 and block > 1:
                values = np.repeat(values, block, axis=d)[(slice(None),) * d + (slice(n),)]
        return np.broadcast_to(values, self.shape)

    def reduce(self, function: np.ufunc, x: NDArray[Any], initial: float) -> NDArray[Any]:
        """Return `function` over each block, in the shape of a scale; `initial` for an empty block."""
        sizes, first = self.block_sizes, x.ndim
        # Contiguous axes that are not divided are merged into one, because reducing short axes is slow.
        while first and (sizes[first - 1] == x.shape[first - 1] or sizes[first - 1] > x.shape[first - 1] > 0):
            first -= 1
        if first < x.ndim:
            x = x.reshape(*x.shape[:first], prod(x.shape[first:]))
            sizes = (*sizes[:first], x.shape[-1])
        for axis, (n, size) in enumerate(zip(x.shape, sizes, strict=True)):
            if size == n or size > n > 0:
                x = function.reduce(x, axis=axis, keepdims=True, initial=initial)
            elif size > 1 and n > 0:
                x = function.reduceat(x, np.arange(0, n, size), axis=axis)
        return x.reshape(self.scale_shape)

    def split(self, x: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the blocks of x in the order of the scales."""
        sizes = self.block_sizes
        for at in np.ndindex(*self.counts):
            yield x[tuple(slice(i * size, (i + 1) * size) for i, size in zip(at, sizes, strict=True))]

    def to_rows(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the blocks of x as rows [blocks, elements], in the order of the scales.

        Short blocks are filled up with zeros.
        """
        blocks = [min(n, size) for n, size in zip(x.shape, self.block_sizes, strict=True)]
        short = [count * size - n for count, size, n in zip(self.counts, blocks, x.shape, strict=True)]
        if any(short):
            x = np.pad(x, [(0, n) for n in short])
        pairs = [n for pair in zip(self.counts, blocks, strict=True) for n in pair]
        apart = x.reshape(pairs).transpose(*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2))
        return np.ascontiguousarray(apart).reshape(prod(self.counts), prod(blocks))

    @property
    def rows_of_block(self) -> int:
        """Number of rows, indices of the first dimension, in one block; 1 if all rows share scales."""
        return self.block_sizes[0] if self.counts[0] > 1 else 1

    def rows(self, params: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """Return the parameters of rows [start, stop) of x; start is a multiple of `rows_of_block`."""
        if self.counts[0] == 1:
            return params
        return params[start // self.rows_of_block : -(-stop // self.rows_of_block)]


def expand_params(
    params: ArrayLike, shape: Sequence[int], granularity: Granularity = PER_TENSOR
) -> NDArray[Any]:
    """Return a scale or zero point expanded to `shape` as in `Layout.match`, with its SpecError."""
    values = np.asarray(params)
    return Layout.match(granularity, shape, values.shape).expand(values)


def open_axis(granularity: Granularity, shape: Sequence[int | str]) -> int | None:
    """Return the first axis of `shape` with an open size that changes the number of scales, or None.

    An open size is not a number, as the name of a dimension.
    """
    sizes = _block_sizes(granularity, shape)
    pairs = enumerate(zip(shape, sizes, strict=True))
    return next((d for d, (n, block) in pairs if not isinstance(n, int) and block is not n), None)


def _misfit(params: Sequence[int], shape: Sequence[int], why: str) -> SpecError:
    return SpecError(f"parameter of shape {list(params)} does not fit x of shape {list(shape)}{why}")


def _block_sizes(granularity: Granularity, shape: Sequence[Size]) -> tuple[Size | int, ...]:
    axis, blocks = granularity.axis, granularity.block_shape
    if blocks is not None:
        if len(blocks) != len(shape):
            raise SpecError(
                f"block_shape {list(blocks)} must have one size for each dimension of {list(shape)}"
            )
        return tuple(n if block == -1 else block for n, block in zip(shape, blocks, strict=True))
    if axis is None:
        return tuple(shape)
    at = normalize_axis(axis, len(shape))
    if granularity.block_size is None:
        return tuple(1 if d == at else n for d, n in enumerate(shape))
    return tuple(granularity.block_size if d == at else 1 for d in range(len(shape)))

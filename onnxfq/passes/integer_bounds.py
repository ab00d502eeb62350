"""Operands of int8 products, and the bound of their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import CONVOLUTIONS

Array = NDArray[Any]

EXACT = 1 << 24
"""Every integer up to this is exact in float32."""

_LARGEST = 128
_UPPER, _LOWER = 8, 15
"""Largest magnitudes of the two parts of an int8: -8..7, and 0..15."""


@dataclass(frozen=True)
class IntegerOperand:
    """An int8 tensor behind a DQ, and its scale.

    Attributes:
        integers: name of the int8 tensor.
        scale: one number, or one for each index of `axis`.
        axis: of the scales, None for one number.
        constant: the integers, None for a computed tensor.
        shape: None for an open size.
        order: permutation of a Transpose between; axis, constant and shape are the ones behind it.
    """

    integers: str
    scale: Array
    axis: int | None
    constant: Array | None
    shape: tuple[int | None, ...]
    order: tuple[int, ...] | None = None

    def transpose(self, order: Sequence[int]) -> IntegerOperand:
        """Return the operand behind a Transpose."""
        return replace(
            self,
            axis=None if self.axis is None else list(order).index(self.axis),
            constant=None if self.constant is None else self.constant.transpose(order),
            shape=tuple(self.shape[axis] for axis in order),
            order=tuple(order),
        )


def longest(
    node: onnx.NodeProto, operands: list[IntegerOperand], split: int | None = None, part: int = 0
) -> float:
    """Return an upper bound of the sums of products; infinity when it is unknown.

    Args:
        node: the product.
        operands: both operands.
        split: the operand of which only a part is multiplied; None for none.
        part: the part of that operand: 0, the upper four bits, or 1, the lower.
    """
    limits: list[float] = [_LARGEST] * len(operands)
    if split is not None:
        limits[split] = (_UPPER, _LOWER)[part]
    known = next((i for i, operand in enumerate(operands) if operand.constant is not None), len(operands) - 1)
    operand, axes = operands[known], _find_summed_axes(node, known, len(operands[known].shape))
    if operand.constant is None:
        sizes = [operand.shape[axis] for axis in axes]
        return prod(size if size is not None else np.inf for size in sizes) * prod(limits)
    integers = operand.constant.astype(np.int64)
    if known == split:
        integers = integers >> 4 if part == 0 else integers & 15
    return float(np.abs(integers).sum(axis=axes).max(initial=0)) * limits[1 - known]


def _find_summed_axes(node: onnx.NodeProto, slot: int, rank: int) -> tuple[int, ...]:
    """Return the axes of input `slot` over which products are summed."""
    if node.op_type == "Conv":
        return tuple(range(1, rank))
    if node.op_type == "ConvTranspose":
        return (0, *range(2, rank))
    if rank == 1:
        return (0,)
    turned = attributes_of(node).get(("transA", "transB")[slot], 0)
    return (rank - 1,) if bool(turned) != (slot == 0) else (rank - 2,)


def outer_axis(node: onnx.NodeProto, slot: int, rank: int) -> int:
    """Return the axis of input `slot` along which a constant may have several scales."""
    if node.op_type in CONVOLUTIONS:
        return int(node.op_type == "ConvTranspose")
    summed = _find_summed_axes(node, slot, rank)[0]
    return rank - 1 if summed == rank - 2 else rank - 2

"""`read_nbits`: matrices whose numbers of 2, 4 or 8 bits are packed along their rows in blocks.

Source: the schemas of `com.microsoft.MatMulNBits` and `GatherBlockQuantized` in ONNX Runtime 1.32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.ops import BLOCK_BITS
from onnxfq.graph.stored_grid import StoredGrid, grid_of
from onnxfq.quantized.number_grids import quantized_slots


@dataclass(frozen=True, eq=False)
class BlockedNumbers:
    """A stored matrix [N, K].

    Attributes:
        numbers: uint8 from 0.
        bits: of a number.
        scale: [N, blocks], of the type of the products.
        zero_point: int32, [N, blocks].
        block_size: numbers along K that share a scale.
    """

    numbers: NDArray[np.uint8]
    bits: int
    scale: NDArray[Any]
    zero_point: NDArray[np.int32]
    block_size: int

    @property
    def grid(self) -> StoredGrid:
        """The numbers as steps times scales."""
        return grid_of(self.numbers, self.scale, self.zero_point, 1, self.block_size)


def read_nbits(node: onnx.NodeProto, array: Callable[[str], NDArray[Any] | None]) -> BlockedNumbers:
    """Return the matrix of a MatMulNBits, or the table of a GatherBlockQuantized.

    array: gives the values of a constant, None for another tensor and for an empty name.

    Raises ModelError for computed weights, an order of the inputs, other axes, zero points that are not
    packed, and bytes of another number.
    """
    given = {"bits": 4, "block_size": 128, **attributes_of(node)}
    bits, block = given["bits"], max(given["block_size"], 1)
    operand, is_table = quantized_slots(node).operands[0], node.op_type == "GatherBlockQuantized"
    packed, scale = array(node.input[operand.data]), array(input_name(node, operand.scale))
    zeros = array(input_name(node, operand.zero))
    unknown = input_name(node, 4) or (zeros is not None and zeros.dtype != np.uint8)
    if packed is None or scale is None or packed.dtype != np.uint8 or unknown:
        raise ModelError(
            f"{node.op_type} {node.name!r} has computed weights, a group index, or numbers or zero points of "
            "another type than uint8; only the plain form is known"
        )
    if is_table:
        n, k = len(packed), packed.shape[-1] * 8 // bits
        known = packed.ndim == 2 and (given.get("gather_axis", 0), given.get("quantize_axis", 1)) == (0, 1)
    else:
        n, k, known = given["N"], given["K"], True
    blocks = -(-k // block)
    stored = n * (k if is_table else blocks * block)
    if not known or bits not in BLOCK_BITS or packed.size * 8 != stored * bits:
        raise ModelError(
            f"{node.op_type} {node.name!r} has {packed.size} bytes for {n} x {k} numbers of {bits} bits; "
            "write it again"
        )
    middle = np.full((n, blocks), 1 << (bits - 1), np.int32)
    zero_point = middle if zeros is None else unpack_bits(zeros.reshape(n, -1), bits)[:, :blocks]
    numbers = unpack_bits(packed.reshape(n, -1), bits)[:, :k]
    return BlockedNumbers(numbers, bits, scale.reshape(n, blocks), zero_point.astype(np.int32), block)


def unpack_bits(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the numbers of 1, 2, 4 or 8 bits along the last axis, the lowest bits of a byte first."""
    parts = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)
    return (parts & np.uint8((1 << bits) - 1)).reshape(*packed.shape[:-1], -1)

"""MatMulNBits and GatherBlockQuantized of ONNX Runtime: products with, and rows of, matrices in blocks.

Source: the schema `com.microsoft.MatMulNBits` of ONNX Runtime 1.32. With A [.., K] and W [K, N]:

    B            uint8 [N, ceil(K / block), block * bits / 8], numbers from 0 on, the lowest bits first
    scales       [N, ceil(K / block)], the type of A
    zero_points  uint8 [N, ceil(ceil(K / block) * bits / 8)], packed alike; 2^(bits - 1) if left out

GatherBlockQuantized has the same for data [N, K], without an axis of blocks.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor, import_domain
from onnxfq.passes.qdq_form import expand_to_one_axis, quantize_in_chunks

DOMAIN = "com.microsoft"

LEVEL = "accuracy_level"
INT8_INPUT = 4
"""Accuracy level whose kernels round the input to int8, with a scale for each block."""


def note_rounding(editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding) -> None:
    """Let the products that read an input which is rounded at run time do that themselves."""
    for use in placement.uses:
        editor.node(use.node).attrs[LEVEL] = INT8_INPUT


def write_weight(editor: Editor, placement: Placement, tensor: gs.Constant, encoding: Encoding) -> None:
    """Replace the operators that read the weight `tensor` by MatMulNBits, or by GatherBlockQuantized."""
    name, bits = placement.tensor, encoding.spec.qtype.bits
    values = constant_array(tensor)
    params = expand_to_one_axis(encoding, values.shape)
    block = params.granularity.block_size
    assert block is not None  # the policy refuses other granularities
    turned = (params.granularity.axis or 0) % values.ndim == 0
    offset = 1 << (bits - 1) if encoding.spec.qtype.signed else 0
    whole = quantize_in_chunks(values, params, encoding.spec.qtype, np.dtype(np.int16)) + offset
    order = np.transpose if turned else np.asarray
    numbers, zero_points = order(whole), order(params.zero_point + offset)
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % block)))  # numbers behind K are not read
    packed = pack_bits(padded, bits)
    if turned:
        packed = packed.reshape(len(numbers), -1, block * bits // 8)
    integers = make_constant(editor.pick_name(f"{name}_Q{bits}"), packed)
    scales = order(params.scale).astype(values.dtype)
    inputs = [integers, make_constant(editor.pick_name(f"{name}_scales"), scales)]
    if (zero_points != 1 << (bits - 1)).any():
        inputs.append(make_constant(editor.pick_name(f"{name}_qzeros"), pack_bits(zero_points, bits)))
    import_domain(editor.graph, DOMAIN)
    for use in placement.uses:
        node, sizes = editor.node(use.node), {"bits": bits, "block_size": block}
        node.domain = DOMAIN
        if turned:
            node.op, node.inputs = "MatMulNBits", [node.inputs[0], *inputs]
            sizes |= {"K": values.shape[0], "N": values.shape[1]}
            node.attrs = {LEVEL: 0, **node.attrs, **sizes}
        else:
            node.op, node.inputs = "GatherBlockQuantized", [inputs[0], node.inputs[1], *inputs[1:]]
            node.attrs = {"gather_axis": 0, "quantize_axis": 1, **sizes}


def pack_bits(numbers: NDArray[np.integer], bits: int) -> NDArray[np.uint8]:
    """Return rows of numbers of 2, 4 or 8 bits as bytes, the lowest bits first, each row filled up with 0."""
    each = 8 // bits
    filled = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % each))).astype(np.uint8)
    parts = filled.reshape(len(filled), -1, each)
    shifted = parts << (np.arange(each, dtype=np.uint8) * np.uint8(bits))
    return np.ascontiguousarray(np.bitwise_or.reduce(shifted, axis=2))

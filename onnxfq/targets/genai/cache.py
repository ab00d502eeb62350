"""The quantized cache inside GroupQueryAttention.

Source: the schema `com.microsoft.GroupQueryAttention` of ONNX Runtime 1.32: inputs 12 and 13 are the scales
of keys and values, [1] or [1, heads, 1, channels]. Past and present hold int8, float8e4m3fn, or uint8 with
two numbers of 4 bits in each byte, plus 8, the even channel in the low half.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.graph.edit import Editor
from onnxfq.placement.caches import PASTS, SCALES

_PACKED_BITS = 4


def write_cache(editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding) -> None:
    """Let the attention that reads the keys or values `tensor` store them as `encoding` says."""
    (use,) = placement.uses
    node, slot, qtype = editor.node(use.node), use.input, encoding.spec.qtype
    heads = int(node.attrs["kv_num_heads"])
    by_channel = encoding.scale.ndim > 0
    scale = encoding.scale.reshape((1, heads, 1, -1) if by_channel else 1)
    missing = SCALES[slot] + 1 - len(node.inputs)
    node.inputs = [*node.inputs, *(gs.Variable.empty() for _ in range(missing))]
    node.inputs[SCALES[slot]] = editor.constant(f"{placement.tensor}/scale", scale)
    kind = "PER_CHANNEL" if by_channel else "PER_TENSOR"
    node.attrs |= {f"{'_kv'[slot]}_quant_type": kind, "kv_cache_bit_width": qtype.bits}
    for cache in (node.inputs[PASTS[slot]], node.outputs[slot]):
        packed = qtype.bits == _PACKED_BITS
        cache.dtype = np.dtype(np.uint8) if packed else qtype.onnx_type
        width = tensor.shape[-1] // heads
        cache.shape = [*cache.shape[:-1], width // 2 if packed else width]

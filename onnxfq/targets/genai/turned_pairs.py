"""Weights with a row for each output behind DequantizeLinear, and a Transpose in front of the product.

Source: the builder of onnxruntime-genai 0.18 with `use_qdq` for NvTensorRtRtx: int4 [N, K] in blocks along K.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor


def turn_pairs(editor: Editor) -> None:
    """Turn the stored weights of products in the graph of `editor`, in place."""
    for node in list(editor.graph.nodes):
        stored = node.inputs[0] if node.op == "DequantizeLinear" else None
        if not isinstance(stored, gs.Constant) or len(stored.shape) != 2 or "block_size" not in node.attrs:
            continue
        (result,) = node.outputs
        node.inputs = [
            editor.constant(f"{one.name}/turned", np.ascontiguousarray(constant_array(one).T))
            for one in node.inputs
        ]
        node.attrs["axis"] = 1 - node.attrs["axis"] % 2
        turned = editor.variable(f"{result.name}/turned", result)
        turned.shape = list(node.inputs[0].shape)
        node.outputs = [turned]
        name = f"{node.name}/transpose"
        editor.insert_after(turned, [gs.Node("Transpose", name, {"perm": [1, 0]}, [turned], [result])])

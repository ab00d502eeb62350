"""Biases of quantized convolutions that have none, where OpenVINO computes another model without.

OpenVINO 2026.4.1 computes a convolution of two quantized operands wrongly if its shapes are open, its bias is
absent or zero, and several operators read its result: it forgets the scale for all but one of them. A bias of
the least normal float32 keeps it right. Sums do not change by it, unless they are zero.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.ops import CONVOLUTIONS
from onnxfq.graph.queries import nodes_by_graph, producer_op

LEAST = float(np.finfo(np.float32).tiny)


def give_biases(editor: Editor) -> None:
    """Give such convolutions the least bias, in place."""
    for node in nodes_by_graph(editor.graph):
        if forgets_scale(node, editor.graph):
            weight = node.inputs[1]
            channels = weight.shape[0] if node.op == "Conv" else weight.shape[1] * node.attrs.get("group", 1)
            bias = editor.constant(f"{node.name}/least_bias", np.full(channels, LEAST, np.float32))
            node.inputs = [*node.inputs[:2], bias]


def forgets_scale(node: gs.Node, graph: gs.Graph) -> bool:
    """Tell whether OpenVINO forgets the scale of `node` for some of its readers."""
    if node.op not in CONVOLUTIONS or {producer_op(one) for one in node.inputs[:2]} != {"DequantizeLinear"}:
        return False
    made, bias = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    readers = len(made.outputs) + sum(made is output for output in graph.outputs)
    shape = node.inputs[0].shape
    is_open = shape is None or not all(isinstance(size, int) for size in shape)
    biased = bias is not None and (not isinstance(bias, gs.Constant) or bool(constant_array(bias).any()))
    return is_open and readers > 1 and not biased

"""Copies of shared weights for convolutions whose results are scaled.

OpenVINO 2026.4.1 folds the factor into the weight. If others read the weight too, the product runs in float.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.ops import CONVOLUTIONS, SCALES
from onnxfq.graph.queries import nodes_by_graph


def separate_weights(model: Model) -> Model:
    """Return `model` with a copy of each shared weight of such convolutions; the model itself without any."""
    if not SCALES & {node.op_type for node in model.proto.graph.node}:
        return model
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for node in nodes_by_graph(graph):
        weight = node.inputs[1] if node.op in CONVOLUTIONS else None
        if isinstance(weight, gs.Constant) and len(weight.outputs) > 1 and _is_scaled(node):
            node.inputs[1] = editor.constant(f"{weight.name}/{node.name}", constant_array(weight))
            count += 1
    return model.with_graph(graph) if count else model


def _is_scaled(node: gs.Node) -> bool:
    readers = node.outputs[0].outputs
    return any(one.op in SCALES and any(isinstance(t, gs.Constant) for t in one.inputs) for one in readers)

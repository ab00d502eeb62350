"""Copies of shared biases: each has the scale of its layer's products, or is added in its kernel."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.operators import BIAS_SLOT, BIASED


def separate_biases(model: Model) -> Model:
    """Return `model` with a copy of each bias that several nodes read; the model itself without any."""
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for node in nodes_by_graph(graph):
        bias = node.inputs[BIAS_SLOT] if node.op in BIASED and len(node.inputs) > BIAS_SLOT else None
        if isinstance(bias, gs.Constant) and len(bias.outputs) > 1:
            node.inputs[BIAS_SLOT] = editor.constant(f"{bias.name}/{node.name}", constant_array(bias))
            count += 1
    return model.with_graph(graph) if count else model

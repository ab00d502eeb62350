"""Linear layers of two axes with their bias in one operator: a Gemm adds it in the integers of its products.

As MatMul and Add a runtime of node units rounds the product, and then the sum.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.patterns.bias_sums import find_bias_sum
from onnxfq.graph.queries import float_type


def join_biases(model: Model) -> Model:
    """Return `model` with each MatMul by a matrix and the vector added to it as Gemm; itself without any."""
    if not any(node.op_type == "MatMul" for node in model.proto.graph.node):
        return model
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for product in list(graph.nodes):
        add = _find_sum(product, graph)
        if add is not None:
            (bias,) = (operand for operand in add.inputs if operand is not product.outputs[0])
            if len(bias.shape) > 1:
                bias = editor.constant(f"{bias.name}/vector", constant_array(bias).reshape(-1))
            product.op, product.inputs = "Gemm", [*product.inputs, bias]
            product.outputs, add.outputs = add.outputs, []
            graph.nodes.remove(add)
            count += 1
    return model.with_graph(graph) if count else model


def _find_sum(product: gs.Node, graph: gs.Graph) -> gs.Node | None:
    """Return the Add of the bias of a product of two axes in float32; None if the product is an output."""
    add = find_bias_sum(product) if product.domain in STANDARD_DOMAINS else None
    if add is None or any(product.outputs[0] is output for output in graph.outputs):
        return None
    data, weight = product.inputs
    return add if len(data.shape or ()) == 2 and float_type(weight) == "float32" else None

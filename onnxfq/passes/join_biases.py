"""Linear layers of two axes with their bias in one operator: a Gemm adds it in the integers of its products.

As MatMul and Add a runtime of node units rounds the product, and then the sum.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.ops import STANDARD_DOMAINS
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
    """Return the Add of a constant row that alone reads a product of an input by a constant matrix."""
    if product.op != "MatMul" or product.domain not in STANDARD_DOMAINS:
        return None
    (made,), (data, weight) = product.outputs, product.inputs
    if len(made.outputs) != 1 or any(made is output for output in graph.outputs):
        return None
    (add,) = made.outputs
    is_matrix = isinstance(weight, gs.Constant) and len(weight.shape) == 2
    if add.op != "Add" or len(data.shape or ()) != 2 or not is_matrix:
        return None
    biases = [operand for operand in add.inputs if isinstance(operand, gs.Constant)]
    fits = [tuple(bias.shape) in {(weight.shape[1],), (1, weight.shape[1])} for bias in biases]
    return add if fits == [True] and float_type(weight) == "float32" else None

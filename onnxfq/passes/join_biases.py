"""Linear layers with their bias in one operator: a Gemm adds it in the integers of its products.

As MatMul and Add a runtime of node units rounds the product, and then the sum. A Gemm has two axes: data of
more get a Reshape in front, and the result one behind, as ONNX Runtime's MatMulAddFusion writes them.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.queries import float_type


def join_biases(model: Model, flattens: bool = False) -> Model:
    """Return `model` with each MatMul by a matrix and the vector added to it as Gemm; itself without any.

    Args:
        model: a float model with shapes.
        flattens: whether products of data with more than two axes are joined too, of which one may be open.
    """
    if not any(node.op_type == "MatMul" for node in model.proto.graph.node):
        return model
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for product in list(graph.nodes):
        add = _find_sum(product, graph, flattens)
        if add is not None:
            (bias,) = (operand for operand in add.inputs if operand is not product.outputs[0])
            vector = constant_array(bias).reshape(-1)
            bias = editor.constant(f"{bias.name}/vector", vector)
            result, add.outputs = add.outputs[0], []
            product.op, product.inputs = "Gemm", [*product.inputs, bias]
            graph.nodes.remove(add)
            if len(product.inputs[0].shape) > 2:
                _flatten(editor, product, result)
            else:
                product.outputs = [result]
            count += 1
    return model.with_graph(graph) if count else model


def _find_sum(product: gs.Node, graph: gs.Graph, flattens: bool) -> gs.Node | None:
    """Return the Add of a constant row that alone reads a product of an input by a constant matrix."""
    if product.op != "MatMul" or product.domain not in STANDARD_DOMAINS:
        return None
    (made,), (data, weight) = product.outputs, product.inputs
    if len(made.outputs) != 1 or any(made is output for output in graph.outputs):
        return None
    (add,), sizes = made.outputs, data.shape or ()
    open_sizes = [size for size in sizes[:-1] if not isinstance(size, int)]
    flat = len(sizes) == 2 or (flattens and len(sizes) > 2 and len(open_sizes) < 2)
    if add.op != "Add" or not flat or not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        return None
    biases = [operand for operand in add.inputs if isinstance(operand, gs.Constant)]
    columns, rank = weight.shape[1], len(sizes)
    fits = [tuple(bias.shape) in {(1,) * at + (columns,) for at in range(rank)} for bias in biases]
    return add if fits == [True] and float_type(weight) == "float32" else None


def _flatten(editor: Editor, product: gs.Node, result: gs.Tensor) -> None:
    """Put a Reshape to rows in front of `product`, and one to the shape of `result` behind it."""
    data, weight = product.inputs[:2]
    outer = [size if isinstance(size, int) else -1 for size in data.shape[:-1]]
    rows, sums = (editor.variable(f"{product.name}/{name}", like=data) for name in ("rows", "sums"))
    count = "rows" if -1 in outer else prod(outer)
    rows.shape, sums.shape = ([count, width] for width in weight.shape)
    before = _reshape(editor, data, [-1, weight.shape[0]], rows)
    product.inputs[0], product.outputs = rows, [sums]
    editor.insert_after(data, [before])
    editor.insert_after(sums, [_reshape(editor, sums, [*outer, weight.shape[1]], result)])


def _reshape(editor: Editor, source: gs.Tensor, shape: list[int], made: gs.Tensor) -> gs.Node:
    sizes = editor.constant(f"{made.name}/shape", np.asarray(shape))
    return gs.Node("Reshape", f"{made.name}/reshape", {}, [source, sizes], [made])

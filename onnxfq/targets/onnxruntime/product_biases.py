"""Biases of quantized MatMuls in a shape that keeps the integer kernel of the product.

ONNX Runtime 1.31 turns MatMul and Add of a vector into Gemm where shapes are fixed, with a Reshape between
the pair and the Gemm: half of the products of a ViT then run in float, slower than the float model. It leaves
an Add of [1, channels] alone, and the product becomes MatMulIntegerToFloat. Products have two axes or more,
so the sum is equal.
"""

from __future__ import annotations

from functools import partial

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.queries import nodes_by_graph, producer_op


def widen_biases(editor: Editor) -> None:
    """Give the vectors that are added to products of two DequantizeLinear one more axis, in place."""
    for product in nodes_by_graph(editor.graph):
        if product.op == "MatMul" and {producer_op(operand) for operand in product.inputs} == {_DEQUANTIZE}:
            for add in product.outputs[0].outputs:
                _widen_bias(editor, add, product.outputs[0])


_DEQUANTIZE = "DequantizeLinear"


def _widen_bias(editor: Editor, add: gs.Node, product: gs.Tensor) -> None:
    if add.op != "Add" or product.shape is None or len(product.shape) < 2:
        return
    for slot, bias in enumerate(add.inputs):
        if isinstance(bias, gs.Constant) and len(bias.shape) == 1:
            row = constant_array(bias)[None]
            add.inputs[slot] = editor.constant(f"{bias.name}/row", partial(make_constant, values=row))

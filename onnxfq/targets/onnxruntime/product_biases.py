"""Biases of quantized MatMuls in forms that keep the integer kernel of the product.

ONNX Runtime 1.31 turns MatMul and Add of a vector into Gemm where shapes are fixed, with a Reshape between
the pair and the Gemm: half of the products of a ViT then run in float, slower than the float model. It leaves
an Add of [1, channels] alone behind three axes and more: the product becomes MatMulIntegerToFloat. Behind two
axes it leaves a Sum alone. With a constant on the right `join_biases` makes a Gemm of it before placement,
because the bias must be int32.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.graph.queries import nodes_by_graph, producer_op


def set_products_apart(editor: Editor) -> None:
    """Give what reads products of two DequantizeLinear another form, in place, of the same numbers.

    Vectors that are added have one more axis, and a Relu that one other operator reads is a Max. Pairs that
    do not read a result alone read a Max of it.
    """
    for product in nodes_by_graph(editor.graph):
        operands = product.inputs[:2] if product.op in ("MatMul", "Gemm") else []
        if {producer_op(operand) for operand in operands} == {_DEQUANTIZE}:
            makers = {producer_op(operand.inputs[0].inputs[0]) for operand in operands}
            for reader in product.outputs[0].outputs:
                _widen_bias(editor, reader, product.outputs[0])
                if "QuantizeLinear" in makers:  # with dynamic scales it has the kernel in any case
                    _replace_relu(editor, reader)
            if "QuantizeLinear" in makers:
                _part_pairs(editor, product.outputs[0])


def _replace_relu(editor: Editor, relu: gs.Node) -> None:
    """ONNX Runtime 1.31.1 leaves a product in float behind a Relu that waits for a pair."""
    readers = relu.outputs[0].outputs
    if relu.op == "Relu" and [reader.op in QDQ_OPS for reader in readers] == [False]:
        zero = editor.constant("onnxfq/zero", np.zeros((), np.float32))
        relu.op, relu.inputs = "Max", [relu.inputs[0], zero]


def _part_pairs(editor: Editor, result: gs.Tensor) -> None:
    """ONNX Runtime 1.31.1 leaves a product in float whose result a pair reads, but not one pair alone."""
    pairs = [reader for reader in result.outputs if reader.op == "QuantizeLinear"]
    if pairs and (len(result.outputs) > 1 or any(result is output for output in editor.graph.outputs)):
        copy = editor.variable(f"{result.name}/copy", like=result)
        editor.insert_after(result, [gs.Node("Max", copy.name, inputs=[result], outputs=[copy])])
        for pair in pairs:
            pair.inputs[0] = copy


_DEQUANTIZE = "DequantizeLinear"


def _widen_bias(editor: Editor, add: gs.Node, product: gs.Tensor) -> None:
    if add.op != "Add" or product.shape is None or len(product.shape) < 2:
        return
    if len(product.shape) == 2:
        add.op = "Sum"  # any row, and a product of as many rows, makes a Gemm of a product of two axes
        return
    for slot, bias in enumerate(add.inputs):
        if isinstance(bias, gs.Constant) and len(bias.shape) == 1:
            row = constant_array(bias)[None]
            add.inputs[slot] = editor.constant(f"{bias.name}/row", row)

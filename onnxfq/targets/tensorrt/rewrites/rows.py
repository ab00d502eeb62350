"""Tensors of many axes as matrices of their rows, for operators that take 2-D and 3-D tensors only.

    x[B, H, W, K] -> x[B*H*W, K] -> quantizer -> MatMul with w[K, N] -> y[B*H*W, N] -> y[B, H, W, N]

Each row is multiplied alone, so the values are the same. Tried on TensorRT for RTX 1.7.1, with fixed and open
sizes: NVFP4 multiplies so in float4, but in float if the axes come back in front of an open product.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor

DYNAMIC_RANKS = (2, 3)
"""Ranks that TensorRT's dynamic quantizers of MXFP8 and NVFP4 take: "input tensor must be 2D or 3D"."""


def multiplies_rows(node: gs.Node, slot: int) -> bool:
    """Tell whether `node` multiplies every row of its input `slot` by the same matrix of known width."""
    if node.op != "MatMul" or slot != 0:
        return False
    matrix = node.inputs[1].shape
    return matrix is not None and len(matrix) == 2 and isinstance(matrix[1], int)


def make_rows(editor: Editor, tensor: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]]:
    """Return the matrix of the rows of `tensor`, whose last size is known, and the node that makes it."""
    *front, width = tensor.shape
    rows = editor.variable(f"{tensor.name}/rows", tensor)
    rows.shape = [_count(front, rows.name), width]
    shape = _integers(editor, f"{tensor.name}/rows_shape", [-1, width])
    return rows, [gs.Node("Reshape", rows.name, {}, [tensor, shape], [rows])]


def give_axes_back(editor: Editor, tensor: gs.Tensor, product: gs.Node) -> None:
    """Give the result of `product`, which multiplies the rows of `tensor`, the axes of `tensor`.

    The result keeps its name; `tensor` has a Shape of opset 15 or above.
    """
    out, width = product.outputs[0], product.inputs[1].shape[1]
    rows = editor.variable(f"{out.name}/rows", out)
    rows.shape = [_count(tensor.shape[:-1], rows.name), width]
    product.outputs[0] = rows
    front, shape = editor.variable(f"{out.name}/front"), editor.variable(f"{out.name}/shape")
    for made, count in ((front, len(tensor.shape) - 1), (shape, len(tensor.shape))):
        made.dtype, made.shape = np.int64, [count]
    last = _integers(editor, f"{out.name}/width", [width])
    nodes = [
        gs.Node("Shape", front.name, {"start": 0, "end": -1}, [tensor], [front]),
        gs.Node("Concat", shape.name, {"axis": 0}, [front, last], [shape]),
        gs.Node("Reshape", f"{out.name}/axes", {}, [rows, shape], [out]),
    ]
    editor.insert_after(rows, nodes)


def _count(sizes: list[int | str], name: str) -> int | str:
    """Return the number of rows; `name` for an open one."""
    return name if any(isinstance(size, str) for size in sizes) else prod(sizes)


def _integers(editor: Editor, name: str, values: list[int]) -> gs.Constant:
    return editor.constant(name, lambda free: make_constant(free, np.asarray(values, np.int64)))

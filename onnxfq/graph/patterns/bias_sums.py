"""Sums of a product and its bias, which runtimes compute as one Gemm.

Source: `matmul_add_fusion.cc` of ONNX Runtime, in 1.24.2 and 1.32.0.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxfq.graph.follow import Node, Tensor, is_constant


def find_bias_sum(product: Node, is_fixed: Callable[[Tensor], bool] = is_constant) -> Node | None:
    """Return the Add of a constant vector that alone reads a product of data by a constant matrix.

    Args:
        product: a node of a float model or of a quantized one.
        is_fixed: tells whether a tensor is computed from constants alone.
    """
    readers = product.outputs[0].outputs if product.op == "MatMul" and product.outputs else []
    if [reader.op for reader in readers] != ["Add"]:
        return None
    (data, weight), (add,) = product.inputs, readers
    biases = [one for one in add.inputs if is_fixed(one)]
    if is_fixed(data) or not is_fixed(weight) or len(weight.shape or ()) != 2 or len(biases) != 1:
        return None
    width = weight.shape[1]
    rows = [(width,), (1, width)] if len(data.shape or ()) == 2 else [(width,)]
    return add if tuple(biases[0].shape or ()) in rows else None

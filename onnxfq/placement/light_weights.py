"""Products whose kernels cost more than few bits save: their weight is small or none, and their input short.

Formats with dynamic scales give each input of a product two kernels, which read it in float32, compute its
scales and order them: engines of 20 networks in NVFP4 have 2,131 layers, and 1,158 in half (TensorRT for RTX
1.7.1). A static pair is part of the kernel in front. `prices` has the kernel behind.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from onnxfq.graph.queries import find_fixed
from onnxfq.placement.prices import count_numbers, price_sums, save_products, split_operands
from onnxfq.placement.target_policy import NodeDecision, fewer_or_noted

_PRODUCTS = ("MatMul", "Gemm")
_DYNAMIC = 2
"""Kernels of an input with dynamic scales."""
_FLOATS = 5
"""Bytes more than in half that they take for each number, which is written and read in float32."""
_REMEDY = "; to quantize it, set small_shapes: quantize in the recipe"


def leave_out_light(
    decisions: list[NodeDecision], nodes: Collection[gs.Node], kernel: int
) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for products that cost more than they save.

    A product of two computed tensors has no weight, and costs kernels with dynamic scales alone. If no
    product is left, all stay.

    Args:
        decisions: decisions on the weighted nodes.
        nodes: all nodes, makers before readers.
        kernel: bytes that a launch counts as.
    """
    by_name = {node.name: node for node in nodes if node.op in _PRODUCTS}
    fixed, fewer = find_fixed(nodes), []
    for decision in decisions:
        node = by_name.get(decision.node)
        cost = 0.0 if node is None else _price(node, decision, fixed, kernel)
        why = f"its kernels cost {cost:,.0f} bytes more than {decision.op_type} saves{_REMEDY}"
        fewer.append(decision.leave_out("light-weight", why) if cost > 0 else decision)
    return fewer_or_noted(decisions, fewer, "its weight is small, and so are all of the model's")


def _price(node: gs.Node, decision: NodeDecision, fixed: Collection[str], kernel: int) -> float:
    """Return the bytes that the kernels of `node` cost, less those that it saves; 0 without float formats."""
    placed = [p for p in decision.placements if p.role == "activation" and p.spec.qtype.is_float]
    dynamic = bool(placed) and placed[0].spec.dynamic
    # A builder does not fold what computes dynamic scales.
    weights, read = split_operands(node, () if dynamic else fixed)
    if not placed or not (weights or dynamic):
        return 0.0
    qtype = placed[0].spec.qtype
    cost = price_sums(node, kernel) - save_products(node, qtype.bits)
    cost -= sum(map(count_numbers, weights)) * (2 - qtype.bits / 8)
    for tensor in read:
        readers = sum(reader.op in _PRODUCTS for reader in tensor.outputs)
        if dynamic:
            cost += (_DYNAMIC * kernel + _FLOATS * count_numbers(tensor)) / max(readers, 1)
    return cost

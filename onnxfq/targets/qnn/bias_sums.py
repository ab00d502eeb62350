"""Sums of a product and its bias: ONNX Runtime makes one Gemm of a MatMul and the Add between pairs.

A pair between them would round the product before the bias is added. The Gemm has two axes, and stands
between Reshapes for data of more. Its bias becomes int32, and its weight may have a scale for each channel.

Sources: `matmul_add_fusion.cc` and `weight_bias_quantization.cc` of ONNX Runtime, in 1.24.2 and 1.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.names import Use
from onnxfq.graph.patterns.bias_sums import find_bias_sum
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.placement.target_policy import NodeDecision


def join_bias_sums(
    decisions: Sequence[NodeDecision], nodes: Mapping[str, gs.Node], recipe: Recipe
) -> list[NodeDecision]:
    """Return `decisions` with one for each product and its Add, as for a Gemm; the bias stays in float.

    ONNX Runtime has no node unit of a Gemm whose data and result have two formats: its pairs stay.

    Args:
        decisions: with the pairs of products and sums.
        nodes: of the graph, by name.
        recipe: formats of weights.
    """
    found = {decision.node: decision for decision in decisions}
    for decision in decisions:
        product = nodes[decision.node]
        add = find_bias_sum(product) if decision.placements else None
        behind = None if add is None else found.get(add.name)
        if add is None or behind is None or not behind.placements:
            continue
        inside = {Use(add.name, slot) for slot in range(2)}
        between = [one for one in decision.placements if one.tensor == product.outputs[0].name]
        around = [
            one for one in (*decision.placements, *behind.placements) if not inside.issuperset(one.uses)
        ]
        formats = {one.spec.qtype for one in around if one.role == "activation"}
        if between and between[0] not in around and len(formats) == 1:
            del found[add.name]
            found[product.name] = replace(
                decision,
                needs=tuple(use for use in (*decision.needs, *behind.needs) if use not in inside),
                placements=tuple(_by_channel(one, product, recipe) for one in around),
            )
    return list(found.values())


def _by_channel(placement: Placement, product: gs.Node, recipe: Recipe) -> Placement:
    """Return the placement of a weight, with a scale for each channel if this product alone reads it."""
    weight = product.inputs[1]
    if placement.tensor != weight.name or placement.spec.granularity != PER_TENSOR:
        return placement
    asked = recipe.weight_for(product.name, product.op, weight.name).granularity
    if asked == "per_tensor" or len(weight.outputs) > 1:
        return placement
    spec = placement.spec.model_copy(update={"granularity": Granularity(1)})
    why = f"weight of {product.op}, per output channel: ONNX Runtime makes a Gemm of it and its bias"
    return placement.model_copy(update={"spec": spec, "why": why})

"""Placing both inputs of weighted operators: Conv, ConvTranspose, Gemm, MatMul."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfq.graph.analysis import dtype_name, is_float32, weight_source
from onnxfq.graph.ops import WEIGHTED_INPUTS, channel_axis, summed_axis
from onnxfq.plan import Placement, Use
from onnxfq.policies.target import TargetPolicy
from onnxfq.recipe import Recipe, WeightScheme
from onnxfq.spec import QuantSpec


@dataclass(frozen=True)
class NodeDecision:
    """What is decided for one node: placements for all its needs, or a reason to leave it in float.

    by_rule: float is what the target wants for this node, so it does not count in the coverage.
    """

    node: str
    op_type: str
    needs: tuple[Use, ...]
    placements: tuple[Placement, ...] = ()
    why_float: str = ""
    by_rule: bool = False


def decide_weighted(
    node: gs.Node, recipe: Recipe, policy: TargetPolicy, read_in_float: Collection[str] = ()
) -> NodeDecision:
    """Quantize all multiplied inputs of `node`, or none: one float side makes a float kernel.

    read_in_float: tensors with a reader that wants them unrounded.
    """
    slots = WEIGHTED_INPUTS[node.op]
    placements, needs, why_float = [], [], ""
    for slot in slots:
        placement = _place(node, slot, recipe, policy, read_in_float)
        needs.append(placement.uses[0])
        # A transposed weight may be named before or after the Transpose.
        names = (placement.tensor, node.inputs[slot].name)
        if any(recipe.keeps_float(node.name, node.op, name) for name in names):
            why_float = f"kept in float by an override of recipe {recipe.name}"
        elif not is_float32(node.inputs[slot]):
            found = dtype_name(node.inputs[slot])
            why_float = f"input {placement.tensor!r} is {found}, and only float32 is quantized"
        placements.append(placement)
    if why_float:
        return NodeDecision(node.name, node.op, tuple(needs), (), why_float)
    return NodeDecision(node.name, node.op, tuple(needs), tuple(placements))


def place_activation(node: gs.Node, slot: int, recipe: Recipe, why: str) -> Placement:
    """Place input `slot` of `node` as an activation, per tensor."""
    tensor = node.inputs[slot].name
    scheme = recipe.activation_for(node.name, node.op, tensor)
    spec = QuantSpec(qtype=scheme.qtype, symmetric=scheme.symmetric, calibrator=scheme.calibrator)
    return Placement(tensor=tensor, role="activation", spec=spec, uses=(Use(node.name, slot),), why=why)


def _place(
    node: gs.Node, slot: int, recipe: Recipe, policy: TargetPolicy, read_in_float: Collection[str]
) -> Placement:
    source = weight_source(node, slot, read_in_float)
    if source is None:
        return place_activation(node, slot, recipe, f"input of {node.op}")
    tensor = source.tensor.name
    scheme = recipe.weight_for(node.name, node.op, tensor)
    rank = len(source.permutation)
    axis, block_size, why = _weight_granularity(node, slot, rank, scheme, policy)
    spec = QuantSpec(
        qtype=scheme.qtype,
        symmetric=scheme.symmetric,
        axis=None if axis is None else source.permutation[axis],
        block_size=block_size,
        calibrator=scheme.calibrator,
    )
    return Placement(
        tensor=tensor, role="weight", spec=spec, uses=(source.use,), why=f"weight of {node.op}, {why}"
    )


def _weight_granularity(
    node: gs.Node, slot: int, rank: int, scheme: WeightScheme, policy: TargetPolicy
) -> tuple[int | None, int | None, str]:
    """Return (axis, block_size, why) in the axes of the node's input."""
    if scheme.granularity == "per_tensor":
        return None, None, "per tensor as the recipe asks"
    if scheme.granularity == "blocked":
        summed = summed_axis(node, slot, rank)
        if summed is not None:
            return summed, scheme.block_size, f"blocks of {scheme.block_size} along its summed axis"
    if node.op in policy.per_tensor_weights:
        return None, None, policy.per_tensor_weights[node.op]
    axis = channel_axis(node, slot, rank)
    if axis is None:
        return None, None, "per tensor: it has no channel axis"
    return axis, None, "per output channel"

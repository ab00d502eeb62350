"""Qualcomm's HTP: it runs node units, operators with a pair on every float input and output.

Sources: `onnxruntime.quantization.execution_providers.qnn`, which tests/targets/test_qnn.py asks, and ONNX
Runtime's documentation of the QNN execution provider.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.model import bodies
from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import nodes_by_graph, producer_op
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.targets.qnn.bias_sums import join_bias_sums
from onnxfq.targets.qnn.operators import ABSORBED, EIGHT_BITS, OPERATORS, explain_axes, needs_one_scale
from onnxfq.targets.reading.limits import Product, TargetLimit, explain, refuse

# The HTP computes these in 16 bits on one grid only: scale 1/65536 from 0, and 1/32768 around the middle.
_GRIDS = {"Sigmoid": (0.0, 65535 / 65536), "Tanh": (-1.0, 32767 / 32768)}


IN_BODY = "ONNX Runtime gives QNN no node of a body of If, Loop or Scan"
IDLE = "it moves data between operators in float"


def _is_weight(product: Product) -> bool:
    """Tell whether the operand has the format of weights; other constants have the format of activations."""
    return product.is_weight and product.multiplies


def _explain_weight(product: Product) -> str:
    """Report weights that QNN does not take: it wants symmetric int8 or int4, without blocks."""
    if not _is_weight(product):
        return ""
    if product.numbers not in ("int8", "int4") or product.zeros != "none":
        zero = "" if product.zeros == "none" else " with zero points"
        return f"QNN takes symmetric int8 or int4 weights, not {product.numbers}{zero}; use int8"
    return "QNN takes no scales of blocks; use per_axis" if product.scales == "blocks" else ""


def _explain_activation(product: Product) -> str:
    """Report activations that QNN does not take: it wants uint8 or uint16 with one scale."""
    if _is_weight(product):
        return ""
    if product.numbers not in ("uint8", "uint16"):
        return f"QNN takes activations of uint8 or uint16, not {product.numbers}; use one of them"
    return (
        "" if product.scales == "one" else "QNN takes one scale of an activation; use granularity: per_tensor"
    )


LIMITS = (
    TargetLimit("weight-format", "float", _explain_weight),
    TargetLimit("activation-format", "float", _explain_activation),
)


def _explain_groups(product: Product) -> str:
    """Report weights of a grouped ConvTranspose with several scales, with which QNN computes other values."""
    grouped = product.op == "ConvTranspose" and product.groups > 1 and product.is_weight
    if not grouped or product.scales == "one":
        return ""
    return (
        f"the HTP gives the scales of one group to all {product.groups} of a ConvTranspose; use granularity: "
        "per_tensor"
    )


GROUPS = TargetLimit("group-scales", "wrong", _explain_groups)
"""The planner gives such a weight one scale."""


def _revise(decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe) -> list[NodeDecision]:
    """Return `decisions` without operators that vanish, with the grids that the HTP computes on.

    A weight that another operator reads too, such as a tied table of words, is in float there, and so are
    moves of data between operators in float.
    """
    inside = {inner.name for node in nodes for body in bodies(node) for inner in nodes_by_graph(body)}
    decisions = [
        d.leave_out("target", IN_BODY) if d.node in inside and d.placements else d for d in decisions
    ]
    by_name = {node.name: node for node in nodes}
    idle = _find_idle_moves(decisions, by_name)
    decisions = [d.leave_out("target", IDLE) if d.node in idle else d for d in decisions]
    producers = {tensor.name: producer_op(tensor) for node in nodes for tensor in node.outputs}
    written = {p.tensor for d in decisions if d.op_type not in ABSORBED for p in d.placements}
    placing = {decision.node for decision in decisions if decision.placements}
    multiplied = {node.name for node in nodes if is_weighted(node)}
    narrow = _find_second_operands(nodes)
    weights = {
        p.tensor for d in decisions if d.node in multiplied for p in d.placements if p.role == "weight"
    }
    revised = []
    for d in decisions:
        node = by_name[d.node]
        if _vanishes(node, written, placing):
            continue
        kept = (p for p in d.placements if d.node in multiplied or p.tensor not in weights)
        fitting = (_in_eight_bits(_on_grid(p, producers.get(p.tensor, "")), narrow) for p in kept)
        revised.append(replace(d, placements=tuple(_in_one_scale(p, node) for p in fitting)))
    return join_bias_sums(revised, by_name, recipe)


def _find_idle_moves(decisions: list[NodeDecision], nodes: Mapping[str, gs.Node]) -> set[str]:
    """Return the nodes with pairs that only move data, which no operator with pairs makes or reads."""
    placed = {d.node for d in decisions if d.placements}
    idle = {name for name in placed if needs_one_scale(nodes[name])}
    level = placed - idle
    while level:
        around = [one for name in level for one in (*nodes[name].inputs, *nodes[name].outputs)]
        level = {one.name for tensor in around for one in (*tensor.inputs, *tensor.outputs)} & idle
        idle -= level
    return idle


def _find_second_operands(nodes: Collection[gs.Node]) -> set[str]:
    """Return the second operands of products of two activations, and all moves of the same data."""
    level = [
        node.inputs[1]
        for node in nodes
        if node.op == "MatMul" and not any(isinstance(one, gs.Constant) for one in node.inputs)
    ]
    found: set[str] = set()
    while level:
        tensor = level.pop()
        if tensor.name not in found:
            found.add(tensor.name)
            level += [one.inputs[0] for one in tensor.inputs if needs_one_scale(one)]
            level += [made for one in tensor.outputs if needs_one_scale(one) for made in one.outputs]
    return found


def _in_eight_bits(placement: Placement, tensors: Collection[str]) -> Placement:
    """Return the placement of one of `tensors` in 8 bits: the HTP multiplies its first 8 bits alone."""
    if placement.tensor not in tensors or placement.spec.qtype.name != "uint16":
        return placement
    spec = placement.spec.model_copy(update={"qtype": qtype_by_name("uint8")})
    why = f"{placement.why}; in 8 bits, which the HTP takes of the second operand of a product"
    return placement.model_copy(update={"spec": spec, "why": why})


def _vanishes(node: gs.Node, written: Collection[str], placing: Collection[str]) -> bool:
    """Tell whether a pair behind `node` does its work, and so it has no pairs.

    Args:
        node: a decided node.
        written: tensors with pairs of operators that do not vanish.
        placing: names of the nodes with pairs.
    """
    if is_weighted(node) or not node.inputs:
        return False
    data = node.inputs[0]
    while node.op in ABSORBED and data.name not in written and data.inputs:
        node, data = data.inputs[0], data.inputs[0].inputs[0]
        if node.op not in ABSORBED:
            return node.name in placing and not needs_one_scale(node)
    return False


def _on_grid(placement: Placement, producer: str) -> Placement:
    if producer not in _GRIDS or placement.spec.qtype.name != "uint16" or placement.spec.symmetric:
        return placement
    fixed = Calibrator(name="range", parameters=_GRIDS[producer])
    why = f"{placement.why}; the HTP computes {producer} in 16 bits on one grid only"
    return placement.model_copy(update={"calibrator": fixed, "why": why})


def _in_one_scale(placement: Placement, node: gs.Node) -> Placement:
    """Return the placement of a weight with one scale where the HTP confuses several."""
    shapes = {one.name: tuple(one.shape) for one in node.inputs if isinstance(one, gs.Constant)}
    beyond = explain((GROUPS,), placement, Operands(node, (placement,), shapes))
    if not beyond:
        return placement
    spec = placement.spec.model_copy(update={"granularity": PER_TENSOR})
    return placement.model_copy(update={"spec": spec, "why": f"{placement.why}; one scale: {beyond}"})


def _keep_float(operands: Operands) -> str:
    op, shape = operands.node.op, operands.node.inputs[0].shape
    if op in EIGHT_BITS and any(placement.spec.qtype.bits > 8 for placement in operands.placements):
        return f"the HTP has {op} in 8 bits alone"
    return explain_axes(op, shape)


POLICY = TargetPolicy(
    per_tensor_weights={"MatMul": "per tensor: QNN has no MatMul with a scale for each channel"},
    refuses=refuse("QNN", *LIMITS),
    keeps_float=_keep_float,
    revise=_revise,
    operators=OPERATORS,
    absorbed=ABSORBED,
    equalizes=False,
    bias_qtype="int32",
    one_scale=needs_one_scale,
)

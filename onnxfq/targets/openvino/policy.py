"""OpenVINO on a CPU: number formats that it multiplies in 8 bits, and where its pairs stand.

Sources: OpenVINO's documentation of low precision transformations, and the kernels that release 2026.4.1
chooses, tried one operator at a time (`tests/targets/test_openvino.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS, is_weighted
from onnxfq.graph.queries import producer_op
from onnxfq.numerics.float_types import find_storage_qtype
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import QType, qtype_by_name
from onnxfq.placement.pass_through_ops import ONE_SCALE
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.targets.openvino.operators import OPERATORS, choose_operators

# No negative value: the zero point of an unsigned grid is 0.
_NOT_NEGATIVE = frozenset({"HardSigmoid", "Relu", "Sigmoid", "Softmax"})
_BRIDGES = ONE_SCALE | {"AveragePool"}
_WEIGHTS_ALONE = ("int4", "int8", "uint4", "uint8")


def _refuses(placement: Placement, operands: Operands) -> str:
    spec = placement.spec
    base = (find_storage_qtype(spec.qtype) or spec.qtype).name
    if spec.dynamic or spec.scale_type != "float32":
        return "OpenVINO multiplies in 8 bits with constant float32 scales only; use dynamic: false"
    if spec.zero_point == "fractional":
        return "OpenVINO takes integer zero points only; use zero_point: integer"
    if placement.role == "weight":
        return _refuses_weight(placement, base, operands)
    if base not in ("int8", "uint8"):
        return f"OpenVINO multiplies activations of 8 bits only, not {base}; use uint8 or int8"
    if spec.observed_granularity != PER_TENSOR:
        return "OpenVINO takes one scale of an activation; use granularity: per_tensor"
    return ""


def _refuses_weight(placement: Placement, base: str, operands: Operands) -> str:
    if operands.node.op in OPERATORS:  # a constant operand, in the format of activations
        return ""
    if operands.weight_only:
        return "" if base in _WEIGHTS_ALONE else f"OpenVINO has no {base} weights; use int8 or int4"
    if base != "int8" or not placement.spec.symmetric:
        found = f"{base}{'' if placement.spec.symmetric else ' with zero points'}"
        return f"OpenVINO multiplies in 8 bits with symmetric int8 weights only, not {found}; use int8"
    if placement.spec.granularity.is_blocked:
        return "OpenVINO multiplies in float where weights have scales of blocks; use per_axis"
    return ""


def _keeps_float(operands: Operands) -> str:
    if operands.weight_only and operands.node.op in CONVOLUTIONS:
        return f"OpenVINO multiplies in float where only the weight of a {operands.node.op} is quantized"
    return ""


def _revise(decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe) -> list[NodeDecision]:
    """Return `decisions` for the operators that gain, with a signed grid where no zero point is multiplied.

    OpenVINO multiplies two activations, and the input of a ConvTranspose, in float if one has a zero point.
    """
    decisions = choose_operators(decisions, nodes)
    weighted = {node.name for node in nodes if is_weighted(node)}
    signed = {
        placement.tensor
        for decision in decisions
        if decision.node in weighted and not _may_have_zero_point(decision)
        for placement in decision.placements
        if placement.role == "activation"
    }
    signed -= {t.name for node in nodes for t in node.outputs if producer_op(t) in _NOT_NEGATIVE}
    return [
        replace(decision, placements=tuple(_make_signed(p, signed) for p in decision.placements))
        for decision in decisions
    ]


def _may_have_zero_point(decision: NodeDecision) -> bool:
    """Tell whether OpenVINO multiplies for this node in 8 bits if its activation has a zero point."""
    return decision.op_type != "ConvTranspose" and any(p.role == "weight" for p in decision.placements)


def _make_signed(placement: Placement, tensors: Collection[str]) -> Placement:
    spec = placement.spec
    if placement.tensor not in tensors or spec.symmetric or spec.qtype.bits != 8:
        return placement
    signed = spec.model_copy(update={"qtype": qtype_by_name("int8"), "symmetric": True})
    why = f"{placement.why}; signed, for OpenVINO multiplies it in 8 bits without a zero point only"
    return placement.model_copy(update={"spec": signed, "why": why})


def _is_bridge(node: gs.Node, qtype: QType) -> bool:
    """Tell whether `node` reads and writes 8 bits between pairs."""
    return node.domain in STANDARD_DOMAINS and qtype.bits == 8 and node.op in _BRIDGES


POLICY = TargetPolicy(
    bias="bias: added in float, to the sums in int32",
    refuses=_refuses,
    keeps_float=_keeps_float,
    revise=_revise,
    bridges=_is_bridge,
    operators=OPERATORS,
)

"""Qualcomm's HTP: it runs node units, operators with a pair on every float input and output.

Sources: `onnxruntime.quantization.execution_providers.qnn`, which tests/targets/test_qnn.py asks, and ONNX
Runtime's documentation of the QNN execution provider.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import producer_op
from onnxfq.numerics.float_types import find_storage_qtype
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.targets.qnn.operators import ABSORBED, OPERATORS, needs_one_scale
from onnxfq.targets.reading.static_scales import refuse_scales, refuse_several

_ACTIVATIONS = ("uint8", "uint16")
# The HTP computes these in 16 bits on one grid only: scale 1/65536 from 0, and 1/32768 around the middle.
_GRIDS = {"Sigmoid": (0.0, 65535 / 65536), "Tanh": (-1.0, 32767 / 32768)}


def _refuses(placement: Placement, operands: Operands) -> str:
    spec = placement.spec
    base = (find_storage_qtype(spec.qtype) or spec.qtype).name
    if refusal := refuse_scales(spec, "QNN"):
        return refusal
    op = operands.node.op
    if placement.role == "weight" and (is_weighted(operands.node) or OPERATORS[op].weights):
        if base not in ("int8", "int4") or not spec.symmetric:
            zero = "" if spec.symmetric else " with zero points"
            return f"QNN takes symmetric int8 or int4 weights, not {base}{zero}; use int8"
        return "QNN takes no scales of blocks; use per_axis" if spec.granularity.is_blocked else ""
    if base not in _ACTIVATIONS:
        return f"QNN takes activations of uint8 or uint16, not {base}; use one of them"
    return refuse_several(spec, "QNN")


def _revise(decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe) -> list[NodeDecision]:
    """Return `decisions` without operators that vanish, with the grids that the HTP computes on.

    A weight that another operator reads too, such as a tied table of words, is in float there.
    """
    by_name = {node.name: node for node in nodes}
    producers = {tensor.name: producer_op(tensor) for node in nodes for tensor in node.outputs}
    written = {p.tensor for d in decisions if d.op_type not in ABSORBED for p in d.placements}
    placing = {decision.node for decision in decisions if decision.placements}
    multiplied = {node.name for node in nodes if is_weighted(node)}
    fixed = _find_fixed(nodes)
    weights = {
        p.tensor for d in decisions if d.node in multiplied for p in d.placements if p.role == "weight"
    }
    return [
        replace(
            d,
            placements=tuple(
                _on_grid(p, producers.get(p.tensor, ""))
                for p in d.placements
                if d.node in multiplied or p.tensor not in weights
            ),
        )
        for d in decisions
        if d.node not in fixed and not _vanishes(by_name[d.node], written, placing)
    ]


def _find_fixed(nodes: Collection[gs.Node]) -> set[str]:
    """Return the names of the nodes that compute constants from constants; `nodes` has makers first."""
    fixed: set[str] = set()
    for node in nodes:
        makers = [maker.name for tensor in node.inputs for maker in tensor.inputs]
        fed = any(not tensor.inputs and not isinstance(tensor, gs.Constant) for tensor in node.inputs)
        if node.inputs and not fed and not is_weighted(node) and fixed.issuperset(makers):
            fixed.add(node.name)
    return fixed


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


POLICY = TargetPolicy(
    per_tensor_weights={"MatMul": "per tensor: QNN has no MatMul with a scale for each channel"},
    refuses=_refuses,
    revise=_revise,
    operators=OPERATORS,
    absorbed=ABSORBED,
    equalizes=False,
    bias_qtype="int32",
    one_scale=needs_one_scale,
)

"""Products that ONNX Runtime multiplies in float despite their pairs, for the plan.

Found by the graphs that release 1.31.1 runs. The pairs stay: the weights are a fourth as large.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.model import bodies
from onnxfq.graph.names import Use
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.node_units import find_written
from onnxfq.placement.target_policy import NodeDecision
from onnxfq.targets.onnxruntime.body_pairs import CLIPPING
from onnxfq.targets.onnxruntime.limits import copies

_UNSIGNED = QuantSpec(qtype=qtype_by_name("uint8"), symmetric=False)


def note_float_kernels(
    decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe
) -> list[NodeDecision]:
    """Return `decisions` with the reason in the placements of products that run in float."""
    by_name = {node.name: node for node in nodes}
    placed = {placement.tensor for decision in decisions for placement in decision.placements}
    leaving = {
        id(tensor)
        for node in nodes
        for body in bodies(node)
        for place, tensor in enumerate(body.outputs)
        if node.op != "If" or node.outputs[place].name not in placed  # `pair_bodies` gives others a pair
    }

    def explain(node: gs.Node) -> str:
        if node.op == "Conv" and id(find_written(node.outputs[0], (), CLIPPING)) in leaving:
            return (
                f"ONNX Runtime runs {node.name!r} in float, for its result leaves the body that computes it"
            )
        return ""

    kept = [d for d in decisions if d.op_type != "Resize" or copies(by_name[d.node])]
    right = {p.tensor for d in kept for p in d.placements if not _is_left(p, d)}
    turned = [_with_unsigned_left(d, right) for d in kept]
    return [d.with_note(why) if (why := explain(by_name[d.node])) else d for d in turned]


def _is_left(placement: Placement, decision: NodeDecision) -> bool:
    """Tell whether it is an int8 constant on the left of a MatMul."""
    on_left = decision.op_type == "MatMul" and placement.uses == (Use(decision.node, 0),)
    return on_left and placement.role == "weight" and placement.spec.qtype.name == "int8"


def _with_unsigned_left(decision: NodeDecision, right: Collection[str]) -> NodeDecision:
    """Return the decision with such a constant in `uint8`, which ONNX Runtime multiplies.

    A constant that stands elsewhere too, in `right`, keeps its format.
    """
    placements = (
        p.model_copy(update={"spec": _UNSIGNED, "why": f"{p.why}; uint8 with one scale on the left"})
        if _is_left(p, decision) and p.tensor not in right
        else p
        for p in decision.placements
    )
    return replace(decision, placements=tuple(placements))

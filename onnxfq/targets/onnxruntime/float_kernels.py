"""Products that ONNX Runtime multiplies in float despite their pairs, for the plan.

Found by the graphs that release 1.31.1 runs. The pairs stay: the weights are a fourth as large.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.names import Use
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.node_units import find_written
from onnxfq.placement.target_policy import NodeDecision
from onnxfq.targets.onnxruntime.limits import copies

_CLIPPING = ("Clip", "Relu")
_UNSIGNED = QuantSpec(qtype=qtype_by_name("uint8"), symmetric=False)


def note_float_kernels(
    decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe
) -> list[NodeDecision]:
    """Return `decisions` with the reason in the placements of products that run in float."""
    by_name = {node.name: node for node in nodes}
    bodies = [body for node in nodes for body in node.attrs.values() if isinstance(body, gs.Graph)]
    inside = {inner.name: number for number, body in enumerate(bodies) for inner in body.nodes}
    leaving = {id(tensor) for body in bodies for tensor in body.outputs}

    def explain(node: gs.Node) -> str:
        if node.op == "Conv":
            result = find_written(node.outputs[0], (), _CLIPPING)
            if id(result) in leaving or len({inside.get(reader.name) for reader in result.outputs}) > 1:
                return "ONNX Runtime runs it in float, for its result leaves the body that computes it"
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

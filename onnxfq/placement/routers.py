"""Routers stay in float: products whose largest results choose the experts of each token.

Noise there sends a token to other experts, which no rounding of their weights makes up for. A router has a
row for each expert, and so a small part of the weights. GenAI's builder and checkpoints of few bits leave it
in float too.
"""

from __future__ import annotations

from collections.abc import Collection, Container

import onnx_graphsurgeon as gs

from onnxfq.graph.follow import readers_behind
from onnxfq.graph.ops import is_weighted
from onnxfq.placement.prices import POINTWISE
from onnxfq.placement.target_policy import NodeDecision

_REASON = ("router", "a router: its largest results choose experts, and noise would choose others")

_KEEPING = POINTWISE | {"LogSoftmax", "Softmax"}
"""Operators between a router and the choice."""

_SCORES = {"MoE": 1, "QMoE": 1, "TopK": 0}
"""Operator that chooses -> its input of scores."""


def leave_out_routers(decisions: list[NodeDecision], nodes: Collection[gs.Node]) -> list[NodeDecision]:
    """Return `decisions`, in float by rule for routers."""
    ahead = set[int]()
    for node in reversed(list(nodes)) if any(one.op in _SCORES for one in nodes) else ():
        if is_weighted(node) or "MoE" in node.op or not ahead.isdisjoint(map(id, node.outputs)):
            ahead.update(map(id, node.inputs))
    found = {node.name for node in nodes if node.op in ("Gemm", "MatMul") and _is_router(node, ahead)}
    return [d.leave_out(*_REASON, by_rule=True) if d.node in found and d.placements else d for d in decisions]


def _is_router(node: gs.Node, ahead: Container[int]) -> bool:
    """Tell whether a choice among the columns of a narrow matrix decides what other products read."""
    weight = node.inputs[1]
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        return False
    width, count = weight.shape[::-1] if node.attrs.get("transB", 0) else weight.shape
    behind = readers_behind(node.outputs[0], _KEEPING) if count < width else ()
    choices = [(one, one.inputs[_SCORES[one.op]]) for one in behind if one.op in _SCORES]
    return any(
        id(scores) in ahead
        and list(scores.shape or ())[-1:] == [count]
        and one.attrs.get("axis", -1) in (-1, len(scores.shape) - 1)
        for one, scores in choices
    )

"""QKV projections: one pair after the product, not one for each part.

Measured on TensorRT for RTX 1.7.1 in int8 and float8, with every way to split that `match_projection` finds
and the factor of the scores in any place. With a pair for each part the builder makes the weight of the
product float if the attention behind it reads the parts, and multiplies in float. With one pair after the
product and its bias all of it stays in low precision. A part that other operators read or compute on prevents
neither, and keeps its pair.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.follow import is_constant
from onnxfq.graph.names import Use
from onnxfq.graph.patterns.attention import Part, Projection, find_attentions, match_projection
from onnxfq.placement.node_decision import NodeDecision
from onnxfq.placement.target_policy import Operands, TargetPolicy
from onnxfq.placement.weighted_ops import place_activation, refuse


def join_pairs(
    decisions: list[NodeDecision],
    nodes: Collection[gs.Node],
    recipe: Recipe,
    policy: TargetPolicy,
    unrounded: Collection[str],
) -> list[NodeDecision]:
    """Return `decisions` with one pair after each quantized product that is split for attention.

    Args:
        decisions: decisions on the weighted nodes.
        nodes: all nodes of the graph.
        recipe: formats, and overrides by node, operator and tensor.
        policy: limits of the target.
        unrounded: names of tensors with a reader that wants them in float.

    An override that names a part, or leaves the output of the product in float, keeps the pairs of the parts.
    """
    found = {decision.node: decision for decision in decisions}
    takers = {id(node) for one in find_attentions(nodes) for node in (one.scores, one.mix)}
    for node in nodes:
        if not _multiplies_weight(node, found.get(node.name)):
            continue
        split = match_projection(node, is_constant)
        several = len({part.tensor.name for part in split.parts}) > 1
        if not several or not split.is_read_by(takers) or any(t.name in unrounded for t in split.carried):
            continue
        joined = _join_placements(node, split, found, recipe, policy)
        for part, placement in zip(split.parts, joined, strict=False):
            found[part.reader.name] = _move_pair(found[part.reader.name], part, placement)
    return [found[decision.node] for decision in decisions]


def _multiplies_weight(node: gs.Node, decision: NodeDecision | None) -> bool:
    if decision is None or node.op not in ("Gemm", "MatMul"):
        return False
    return {placement.role for placement in decision.placements} == {"activation", "weight"}


def _join_placements(
    node: gs.Node, split: Projection, found: dict[str, NodeDecision], recipe: Recipe, policy: TargetPolicy
) -> list[Placement]:
    """Return a placement of the whole for each part, all of one spec; empty if the parts keep their pairs."""
    what = (
        f"output of {node.op} {node.name!r}, whose parts attention reads: they share one pair, because with "
        "a pair each TensorRT makes the weight float"
    )
    made: list[Placement] = []
    if recipe.keeps_float(node.name, "", split.whole.name):
        return made
    for part in split.parts:
        reader, name = part.reader, part.tensor.name
        decision = found.get(reader.name)
        placed = decision is not None and any(
            p.tensor == name and not p.spec.dynamic and p.spec.scale_type == "float32"
            for p in decision.placements
        )
        schemes = [recipe.activation_for(reader.name, reader.op, tensor) for tensor in (name, "")]
        placement = place_activation(reader, part.slot, recipe, policy, what, split.whole)
        if not placed or schemes[0] != schemes[1] or placement is None:
            return []
        refuse(Operands(reader, (placement,), {}), policy)
        made.append(placement.model_copy(update={"uses": (part.entry,)}))
    return made if len({(p.spec, p.calibrator) for p in made}) == 1 else []


def _move_pair(decision: NodeDecision, part: Part, placement: Placement) -> NodeDecision:
    """Return `decision` with the pair of `part` moved after the whole product."""
    own = Use(part.reader.name, part.slot)
    others = tuple(p for p in decision.placements if own not in p.uses)
    needs = tuple(dict.fromkeys(part.entry if use == own else use for use in decision.needs))
    return replace(decision, placements=(*others, placement), needs=needs)

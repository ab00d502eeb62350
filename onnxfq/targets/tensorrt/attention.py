"""Fused attention of TensorRT: both products in low precision or neither.

Measured on TensorRT for RTX 1.7.1, limits and weight-only products behind a fused attention alike. Source of
the limits: NVIDIA, fused attention: pairs on queries, keys, the Softmax and values; int8 heads of 16, 32 or
64 and up to 512 tokens, float8 heads of up to 256. float8 also needs 32 keys, at the least end of a profile:
an encoder of six blocks has 6 fused attentions and 68 layers for 32 to 256 tokens, none and 103 for 1 to 256;
in a half type 62. Half types fuse heads of 16 to 256 for any number of tokens. An attention that its own
format does not fuse stays in float where a half type does. One with a single quantized product is not fused,
and none is in MXFP8 or NVFP4. One query, as in a decode step over a cache, has its own kernel that multiplies
in float: int8 pairs prevent it, and float8 pairs become part of it and only round. In block formats, and with
one query, both products stay in float, one kernel in a half type. An open number of queries counts as
several: a prompt has the most of the work, and its int8 products are fused.

QKV projections get one pair after the product, not one for each part. Measured in int8 and float8, with every
way to split that `match_projection` finds and the factor of the scores in any place. With a pair for each
part the builder makes the weight of the product float if the attention behind it reads the parts, and
multiplies in float. With one pair after the product and its bias all of it stays in low precision. A part
that other operators read or compute on prevents neither, and keeps its pair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.follow import is_constant, readers_behind
from onnxfq.graph.names import Use
from onnxfq.graph.patterns.attention import Attention, Part, Projection, find_attentions, match_projection
from onnxfq.numerics.float_types import block_format_name
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.placement.weighted_ops import place_activation, refuse
from onnxfq.targets.tensorrt.limits import HALF_HEADS, ONE_QUERY, exceed_limit, is_one_query, needs_least_keys

_RULE = "attention"
_REMEDY = (
    "; in a half type it is one kernel; to quantize it nevertheless, set unfused_attention: quantize in the "
    "recipe"
)
MOVES_BEHIND = frozenset({"Cast", "Identity", "Reshape", "Transpose"})
"""Operators allowed between a fused attention and the product behind it."""


def decide_attentions(
    decisions: list[NodeDecision], nodes: Iterable[gs.Node], recipe: Recipe
) -> list[NodeDecision]:
    """Return `decisions` with each attention quantized whole or not at all, by the limits of fusion.

    Weight-only products behind an attention of one sample stay in float.
    """
    found = {decision.node: decision for decision in decisions}
    for attention in find_attentions(nodes):
        found |= {decision.node: decision for decision in _projections(found, attention)}
        products = [node.name for node in (attention.scores, attention.mix)]
        if not found.keys() >= set(products):
            continue
        found |= {name: _without_blocks(found[name]) for name in products}
        first, second = (found[name] for name in products)
        quantized = [one for one in (first, second) if one.placements]
        if len(quantized) == 1:
            kept = second if first.placements else first
            why = (
                f"half of an attention: {kept.node!r} stays in float ({kept.why_float}), and TensorRT fuses "
                "all of an attention or none"
            )
            found[quantized[0].node] = quantized[0].leave_out(_RULE, why)
        elif quantized and is_one_query(attention.scores):
            found |= {one.node: one.leave_out(_RULE, ONE_QUERY) for one in quantized}
        elif quantized and (note := _explain_unfused(attention, quantized[0])):
            if recipe.unfused_attention == "float" and _has_half_kernel(attention):
                found |= {one.node: one.leave_out("unfused-attention", note + _REMEDY) for one in quantized}
            else:
                found |= {one.node: one.with_note(note) for one in quantized}
    return [found[decision.node] for decision in decisions]


def _projections(found: dict[str, NodeDecision], attention: Attention[gs.Node]) -> Iterator[NodeDecision]:
    """Yield weight-only products behind an attention of one sample, as float: TensorRT runs them in float."""
    if _size(attention.scores.inputs[0], 0) != 1 or count_tokens(attention) == 1:
        return
    for node in readers_behind(attention.mix.outputs[0], MOVES_BEHIND):
        decision = found.get(node.name)
        if decision is None or not decision.placements:
            continue
        if all(placement.role == "weight" for placement in decision.placements):
            why = (
                f"behind the attention of {attention.mix.name!r}, with a batch fixed at 1, TensorRT makes "
                "weights float before each run; export with an open batch"
            )
            yield decision.leave_out(_RULE, why)


def _without_blocks(decision: NodeDecision) -> NodeDecision:
    """Return `decision`, in float if it has a block format."""
    blocks = [p for p in decision.placements if p.spec.scale_type != "float32"]
    if not blocks:
        return decision
    name = block_format_name(blocks[0].spec.qtype, blocks[0].spec.scale_type)
    why = f"TensorRT fuses no attention in {name}, and in a half type it makes one kernel of it"
    return decision.leave_out(_RULE, why)


def count_tokens(attention: Attention[gs.Node]) -> int | None:
    """Return the number of queries or keys, whichever is larger; None if neither is known."""
    queries, keys = attention.scores.inputs[:2]
    return max((n for n in (_size(queries, -2), _size(keys, -1)) if n), default=None)


def _explain_unfused(attention: Attention[gs.Node], decision: NodeDecision) -> str:
    """Return why both products run separately; empty if they are fused, or if it is unknown."""
    is_float8, (queries, keys) = decision.placements[0].spec.qtype.is_float, attention.scores.inputs[:2]
    if is_float8 and keys.shape is None:
        return ""
    count = _size(keys, -1)
    limit = exceed_limit(is_float8, _size(queries, -1), count_tokens(attention), count)
    kernels = f"TensorRT's {'float8' if is_float8 else 'int8'} attention"
    why = f"{kernels} has {limit}" if limit else needs_least_keys(is_float8, count)
    return f"not fused: {why}" if why else ""


def _has_half_kernel(attention: Attention[gs.Node]) -> bool:
    """Tell whether the attention is one kernel in a half type, as one of unknown sizes usually is."""
    head = _size(attention.scores.inputs[0], -1)
    return head is None or HALF_HEADS[0] <= head <= HALF_HEADS[1]


def _size(tensor: gs.Tensor, axis: int) -> int | None:
    shape = tensor.shape
    if shape is None or len(shape) < 2 or not isinstance(shape[axis], int):
        return None
    return int(shape[axis])


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
    if recipe.explain_float(node.name, "", split.whole.name):
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

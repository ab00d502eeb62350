"""Attention as TensorRT fuses it: both of its products in low precision or neither, and what is not fused.

Source: NVIDIA, fused attention: pairs on queries, keys, the Softmax and values; int8 heads of 16, 32 or 64
and up to 512 tokens, float8 heads of up to 256; half of it quantized is not fused. Tried on TensorRT for
RTX 1.7.1, and so is what becomes of weight-only products behind a fused attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxfq.placement.decision import NodeDecision

INT8_HEADS = (16, 32, 64)
"""Head sizes of the fused int8 kernel (NVIDIA, fused attention)."""
INT8_TOKENS = 512
FLOAT8_HEAD = 256

# Between the products, as torch's exporters and others write it: scale, mask, and what masks are made with;
# masks of shifted windows are added to the scores of all windows of an image.
_BEFORE_SOFTMAX = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Where"})
# The newer exporter of torch replaces NaN of rows that see nothing behind the Softmax.
_BEHIND_SOFTMAX = frozenset({"Cast", "Dropout", "Identity", "Where"})
_MOVES = frozenset({"Cast", "Identity", "Reshape", "Transpose"})
_STEPS = 6


@dataclass(frozen=True, eq=False)
class Attention:
    """Two products with a Softmax between: queries by keys, and what comes of it by values."""

    scores: gs.Node
    mix: gs.Node

    @property
    def head(self) -> int | None:
        """How many numbers a query has; None when that is not known."""
        return _size(self.scores.inputs[0], -1)

    @property
    def tokens(self) -> int | None:
        """How many queries or keys there are, the larger number of the two; None when neither is known."""
        known = [n for n in (_size(self.scores.inputs[0], -2), _size(self.scores.inputs[1], -1)) if n]
        return max(known, default=None)


def attentions(nodes: Iterable[gs.Node]) -> Iterator[Attention]:
    """Yield every attention among `nodes` that is written as products and a Softmax."""
    for node in nodes:
        if node.op != "MatMul":
            continue
        soft = _above(node.inputs[0], _BEHIND_SOFTMAX, "Softmax")
        scores = None if soft is None else _above(soft.inputs[0], _BEFORE_SOFTMAX, "MatMul")
        if scores is not None:
            yield Attention(scores, node)


def all_or_none(decisions: list[NodeDecision], nodes: Iterable[gs.Node]) -> list[NodeDecision]:
    """Return `decisions` with no attention quantized by half, and the limits of fused kernels told.

    Weight-only products behind an attention of one sample stay in float.
    """
    found = {decision.node: decision for decision in decisions}
    for attention in attentions(nodes):
        for decision, why in list(_projections(found, attention)):
            found[decision.node] = replace(decision, placements=(), why_float=why)
        first, second = (found.get(node.name) for node in (attention.scores, attention.mix))
        if first is None or second is None:
            continue
        quantized: list[NodeDecision] = [one for one in (first, second) if one.placements]
        if not all(_is_static(decision) for decision in quantized):
            continue
        if len(quantized) == 1:
            kept = second if first.placements else first
            why = (
                f"half of an attention: {kept.node!r} stays in float ({kept.why_float}), and TensorRT fuses "
                "all of an attention or none"
            )
            found[quantized[0].node] = replace(quantized[0], placements=(), why_float=why)
        elif quantized:
            note = _not_fused(attention, quantized[0])
            for decision in quantized if note else ():
                found[decision.node] = _told(decision, note)
    return [found[decision.node] for decision in decisions]


def _projections(found: dict[str, NodeDecision], attention: Attention) -> Iterator[tuple[NodeDecision, str]]:
    """Yield weight-only products behind an attention of one sample, and why TensorRT makes them float."""
    if _size(attention.scores.inputs[0], 0) != 1 or attention.tokens == 1:
        return
    for node in _readers_behind(attention.mix.outputs[0]):
        decision = found.get(node.name)
        if decision is None or not decision.placements:
            continue
        if all(placement.role == "weight" for placement in decision.placements):
            why = (
                f"behind the attention of {attention.mix.name!r}, with a batch fixed at 1, TensorRT makes "
                "weights float before each run; export the model with an open batch to have it quantized"
            )
            yield decision, why


def _readers_behind(tensor: gs.Tensor) -> Iterator[gs.Node]:
    for node in tensor.outputs:
        if node.op in _MOVES:
            yield from _readers_behind(node.outputs[0])
        else:
            yield node


def _is_static(decision: NodeDecision) -> bool:
    """Tell whether scales are constants: of block formats TensorRT has no fused attention."""
    return all(p.spec.scale_type == "float32" and not p.spec.dynamic for p in decision.placements)


def _not_fused(attention: Attention, decision: NodeDecision) -> str:
    """Return why both products run by themselves; empty when they are fused, or it is not known."""
    head, tokens = attention.head, attention.tokens
    if decision.placements[0].spec.qtype.is_float:
        if head is not None and head > FLOAT8_HEAD:
            return (
                f"not fused: TensorRT's float8 attention has heads of up to {FLOAT8_HEAD}, these have {head}"
            )
        return ""
    if head is not None and head not in INT8_HEADS:
        heads = ", ".join(map(str, INT8_HEADS))
        return f"not fused: TensorRT's int8 attention has heads of {heads}, these have {head}"
    if tokens is not None and tokens > INT8_TOKENS:
        return f"not fused: TensorRT's int8 attention has up to {INT8_TOKENS} tokens, these are {tokens}"
    return ""


def _told(decision: NodeDecision, note: str) -> NodeDecision:
    placements = tuple(p.model_copy(update={"why": f"{p.why}; {note}"}) for p in decision.placements)
    return replace(decision, placements=placements)


def _above(tensor: gs.Tensor, through: frozenset[str], wanted: str) -> gs.Node | None:
    """Return the nearest node of type `wanted` above `tensor`, past nodes of the types in `through`."""
    level = [tensor]
    for _ in range(_STEPS):
        makers = [t.inputs[0] for t in level if t.inputs]
        for maker in makers:
            if maker.op == wanted:
                return maker
        level = [t for maker in makers if maker.op in through for t in maker.inputs]
    return None


def _size(tensor: gs.Tensor, axis: int) -> int | None:
    shape = tensor.shape
    if shape is None or len(shape) < 2 or not isinstance(shape[axis], int):
        return None
    return int(shape[axis])

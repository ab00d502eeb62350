"""Parts of a network that stay in half: few bits do not pay for their kernels, or these would be too many.

A builder needs minutes to count the kernels in half. A bound is enough: each tensor that a stored weight
multiplies has one at least, and so has each pooling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxfq.documents.recipe import Recipe
from onnxfq.graph.ops import CONVOLUTIONS, is_weighted
from onnxfq.graph.patterns.attention import Attention, find_attentions
from onnxfq.graph.queries import find_fixed
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.prices import (
    ENTRY,
    POINTWISE,
    POOLINGS,
    SUMS,
    adds_kernel,
    count_numbers,
    save_products,
    split_operands,
)
from onnxfq.placement.target_policy import NodeDecision
from onnxfq.support.groups import group_pairs

MOST = 1.05
"""Times the kernels of half that an engine may have."""

LARGE = 16_000_000
"""Bytes that the fastest memory, 3.4 TB/s of an H100, reads while a kernel starts, 5 us.

Products with dynamic scales have many kernels, and in large decoders each of these saves more. Then they are
faster on every GPU.
"""

_DYNAMIC = 2
"""Kernels of an input with dynamic scales."""
_FLOATS = 5
"""Bytes more than in half that they take for each number, which is written and read in float32."""
_JOIN_NONE = CONVOLUTIONS | POOLINGS
"""Operators whose kernels take no pair behind them, nor behind pointwise operators that they take."""


class _Product(NamedTuple):
    """A product of few bits: its weights, the tensors that it quantizes, and their format."""

    node: gs.Node
    weights: list[gs.Tensor]
    read: list[gs.Tensor]
    spec: QuantSpec

    @property
    def saved(self) -> float:
        """Bytes of its weights and multiply-adds that few bits save."""
        bits = self.spec.qtype.bits
        return save_products(self.node, bits) + sum(map(count_numbers, self.weights)) * (2 - bits / 8)


class _Bundle(NamedTuple):
    """Names of nodes that are quantized together, and the kernels and bytes that half does not take."""

    names: frozenset[str]
    kernels: int
    moved: float
    is_dynamic: bool = False

    def __str__(self) -> str:
        """Return the words for the nodes in a reason."""
        others = len(self.names) - 1
        return f"this node, with {others} that go with it," if others else "this node"


def leave_out_costly(
    decisions: Sequence[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe
) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for nodes that do not pay, or whose kernels are too many.

    Nodes of float formats that read the same tensors are one bundle. The products of an attention are too.
    Bundles stay in the order of bytes saved for each kernel. The recipe may allow any number of kernels.

    Args:
        decisions: decisions on the weighted nodes.
        nodes: all nodes, makers before readers.
        recipe: its `entry_bytes` are what a kernel counts as.
    """

    def cost(bundle: _Bundle) -> float:
        return bundle.moved + bundle.kernels * recipe.entry_bytes

    def price(bundle: _Bundle) -> float:
        return cost(bundle) / bundle.kernels if bundle.kernels else -inf

    count, why = _count_least_kernels(nodes), dict[str, tuple[str, str]]()
    spare = inf if recipe.small_shapes == "bytes" else MOST * count - count
    for bundle in sorted(_find_bundles(decisions, nodes), key=price):
        if cost(bundle) > 0:
            text = f"{bundle} has kernels that cost {cost(bundle):,.0f} bytes more than few bits save"
            rule = "bytes", f"{text}; to quantize it, set small_shapes: quantize in the recipe"
        elif bundle.is_dynamic and price(bundle) < -LARGE:
            continue
        elif bundle.kernels > spare:
            text = f"{bundle} has {bundle.kernels} more kernels than in half, and an engine may have"
            text += f" {MOST:g} times half's; to quantize it, set small_shapes: bytes in the recipe"
            rule = "kernels", text
        else:
            spare -= bundle.kernels
            continue
        why |= dict.fromkeys(bundle.names, rule)
    return [d.leave_out(*why[d.node]) if d.node in why else d for d in decisions]


def _find_bundles(decisions: Sequence[NodeDecision], nodes: Collection[gs.Node]) -> Iterator[_Bundle]:
    by_name, fixed = {node.name: node for node in nodes}, find_fixed(nodes)
    found: dict[str, _Product] = {}
    for decision in decisions:
        low = (p.spec for p in decision.placements if p.role == "activation" and p.spec.qtype.is_float)
        if spec := next(low, None):
            node = by_name[decision.node]
            # A builder does not fold what computes dynamic scales.
            found[node.name] = _Product(node, *split_operands(node, () if spec.dynamic else fixed), spec)
    grouped = group_pairs(
        (tuple(tensor.name for tensor in one.read), one)
        for one in found.values()
        if one.weights or one.spec.dynamic
    )
    yield from map(_price_group, grouped.values())
    for attention in find_attentions(nodes):
        products = [found.get(node.name) for node in (attention.scores, attention.mix)]
        static = [one for one in products if one is not None and not one.weights and not one.spec.dynamic]
        if len(static) == len(products) and _crosses(attention):
            yield _Bundle(frozenset(one.node.name for one in static), 1, -sum(one.saved for one in static))


def _price_group(group: Sequence[_Product]) -> _Bundle:
    """Return products that read the same tensors, with the kernels that quantize these and those behind."""
    behind = [one.node for one in group if adds_kernel(one.node, alone=len(group) == 1)]
    kernels, moved = len(behind), -sum(one.saved for one in group)
    # A convolution writes float32.
    moved += sum(SUMS * count_numbers(node.outputs[0]) * (1 + (node.op in CONVOLUTIONS)) for node in behind)
    convolves = any(one.node.op in CONVOLUTIONS for one in group)
    for tensor in group[0].read:
        if group[0].spec.dynamic:
            kernels, moved = kernels + _DYNAMIC, moved + _FLOATS * count_numbers(tensor)
        elif convolves or _enters(tensor):
            kernels, moved = kernels + 1, moved + ENTRY * count_numbers(tensor)
    return _Bundle(frozenset(one.node.name for one in group), kernels, moved, bool(group[0].spec.dynamic))


def _enters(tensor: gs.Tensor) -> bool:
    """Tell whether a static pair on `tensor` is a kernel: what makes it joins with none."""
    makers, seen = list(tensor.inputs), set[int]()
    for maker in makers:
        if maker.op in _JOIN_NONE:
            return True
        if maker.op in POINTWISE and id(maker) not in seen:
            seen.add(id(maker))
            makers += [one for read in maker.inputs for one in read.inputs]
    return False


def _crosses(attention: Attention[gs.Node]) -> bool:
    """Tell whether the queries are products of another tensor than the keys."""
    makers = [_find_product_above(tensor) for tensor in attention.scores.inputs[:2]]
    return len({maker.inputs[0].name for maker in makers if maker is not None}) == len(makers)


def _find_product_above(tensor: gs.Tensor) -> gs.Node | None:
    """Return the nearest product above `tensor`, along first inputs; None if there is none."""
    while tensor.inputs:
        maker = tensor.inputs[0]
        if is_weighted(maker) or not maker.inputs:
            return maker if is_weighted(maker) else None
        tensor = maker.inputs[0]
    return None


def _count_least_kernels(nodes: Collection[gs.Node]) -> int:
    """Return a number of kernels that an engine in half does not fall below."""
    fixed, multiplied = find_fixed(nodes), set[tuple[object, ...]]()
    for node in filter(is_weighted, nodes):
        weights, read = split_operands(node, fixed)
        window = node.inputs[1].shape if node.op in CONVOLUTIONS else None
        # Products of one tensor may be one kernel, as may convolutions with equal windows.
        multiplied |= {(tensor.name, *(window or ())[2:]) for tensor in read if weights}
    return len(multiplied) + sum(node.op in POOLINGS for node in nodes)

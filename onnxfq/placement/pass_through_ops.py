"""Placement on operators between quantized tensors that run in low precision with pairs on both sides.

A Concat runs in low precision, and its inputs are written once, if all its inputs and its output have pairs
of one scale. The same holds for a MaxPool, which otherwise is computed twice where its input is also read in
another scale. An AveragePool needs pairs, but no common scale. Sources: NVIDIA's explicit quantization guide;
Model Optimizer (graph_utils.py, August 2026), which gives a Concat one scale before calibration; engines of
TensorRT for RTX 1.7.1. Calibration may still refuse one scale, see `choose_common_ranges`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Bridge, Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.names import Use
from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import float_type, is_dequantized, nodes_by_graph, weight_source
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.placement.operators import uses_of
from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.placement.weighted_ops import activation_placement

ONE_SCALE = frozenset({"Concat", "MaxPool"})
"""Operators that return only numbers of their inputs, on the same grid."""


def place_bridges(
    placements: Sequence[Placement], graph: gs.Graph, recipe: Recipe, policy: TargetPolicy
) -> tuple[list[Placement], list[Bridge]]:
    """Return `placements` with the inputs of all bridges placed too, and the bridges.

    A bridge is an operator of the main graph that the policy names. Its output is quantized, and nothing
    reads it in float. A pooling needs also an input that is quantized anyway or that only bridges read.
    Constants, equalized tensors, known ranges and inputs of a product of two activations, which belongs to an
    attention, take no common scale. An override with `keep_float` leaves out a bridge or a tensor.
    """
    placed = {placement.tensor: placement for placement in placements}
    found = [n for n in graph.nodes if may_bridge(n, recipe, policy) and _is_open(n, placed, recipe)]
    quantized = {use for placement in placements for use in placement.uses}
    outputs = {tensor.name for tensor in graph.outputs}
    count = -1
    while count != len(found):  # a dropped operator reads its input in float, and may drop others
        count, names = len(found), {node.name for node in found}
        ends = placed.keys() | {t.name for node in found if node.op == "Concat" for t in _tensors(node)}
        for node in reversed(found):  # those behind a node come first
            read = all(use in quantized or use.node in names for use in uses_of(node.outputs[0]))
            if not read or node.outputs[0].name in outputs or not _has_end(node, placed, ends, names):
                names.remove(node.name)
        found = [node for node in found if node.name in names]
    for node in found:
        for slot, tensor in enumerate(node.inputs):
            placed[tensor.name] = _add_use(node, slot, placed.get(tensor.name), recipe)
    return list(placed.values()), [
        Bridge(
            node=node.name,
            op_type=node.op,
            tensors=tuple(dict.fromkeys(t.name for t in _tensors(node))),
            one_scale=node.op in ONE_SCALE,
            counts=policy.counts_bridges,
        )
        for node in found
    ]


def list_moves(placements: Sequence[Placement], graph: gs.Graph, policy: TargetPolicy) -> Iterator[Bridge]:
    """Yield a bridge for each operator whose results need the scale of its first input."""
    formats = {placement.tensor: placement.spec for placement in placements}
    for node in nodes_by_graph(graph):
        if node.inputs and policy.one_scale(node):
            source = node.inputs[0].name
            moved = [t.name for t in node.outputs if formats.get(t.name) == formats.get(source)]
            if source in formats and moved:
                tensors = tuple(dict.fromkeys((source, *moved)))
                yield Bridge(node=node.name, op_type=node.op, tensors=tensors, one_scale=True, required=True)


def may_bridge(node: gs.Node, recipe: Recipe, policy: TargetPolicy) -> bool:
    """Tell whether `node` is of a kind that runs in low precision between pairs of the recipe's format."""
    scheme = recipe.activation_for(node.name, node.op, "")
    return scheme is not None and policy.bridges(node, scheme.qtype)


def _tensors(node: gs.Node) -> list[gs.Tensor]:
    return [*node.inputs, node.outputs[0]]


def _is_open(node: gs.Node, placed: dict[str, Placement], recipe: Recipe) -> bool:
    """Tell whether all tensors of `node` may have pairs of one format, of one scale where it needs that."""
    tensors = _tensors(node)
    made = [_place(node, tensor, recipe, ()) for tensor in tensors]
    if len(node.outputs) > 1 or None in made:
        return False
    formats = {float_type(tensor) for tensor in tensors}
    for tensor, new in zip(tensors, made, strict=True):
        known = placed.get(tensor.name, new)
        assert new is not None and known is not None
        if isinstance(tensor, gs.Constant) or is_dequantized(tensor) or known.spec != new.spec:
            return False
        if node.op in ONE_SCALE and known.calibrator.is_fixed:
            return False
    return len(formats) == 1 and not any(_is_attended(reader) for reader in node.outputs[0].outputs)


def _is_attended(node: gs.Node) -> bool:
    return is_weighted(node) and all(weight_source(node, slot) is None for slot in (0, 1))


def _place(node: gs.Node, tensor: gs.Tensor, recipe: Recipe, uses: tuple[Use, ...]) -> Placement | None:
    """Return the placement of a tensor of `node`; None if the recipe gives it no constant single scale."""
    scheme = recipe.activation_for(node.name, node.op, tensor.name)
    if scheme is None or scheme.dynamic or scheme.granularity != "per_tensor" or float_type(tensor) is None:
        return None
    if recipe.explain_float(node.name, node.op, tensor.name):
        return None
    why = f"input of {node.op} {node.name!r}, which runs in low precision between pairs"
    return activation_placement(tensor, scheme, PER_TENSOR, uses, why)


def _has_end(node: gs.Node, placed: Collection[str], ends: Collection[str], names: Collection[str]) -> bool:
    """Tell whether quantized tensors, or other bridges, stand on both sides of `node`."""
    if node.outputs[0].name not in ends:
        return False
    if node.op == "Concat":
        return True
    if node.op in ONE_SCALE:
        return node.inputs[0].name in ends
    return node.inputs[0].name in placed or all(use.node in names for use in uses_of(node.inputs[0]))


def _add_use(node: gs.Node, slot: int, known: Placement | None, recipe: Recipe) -> Placement:
    use = Use(node.name, slot)
    if known is None:
        known = _place(node, node.inputs[slot], recipe, ())
        assert known is not None, "_is_open has placed it"
    uses = tuple(dict.fromkeys((*known.uses, use)))
    return known.model_copy(update={"uses": uses})

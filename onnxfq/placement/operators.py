"""Placement on inputs and outputs of the operators that a target's policy lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.names import Use
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.queries import (
    float_type,
    is_dequantized,
    nodes_by_graph,
    nodes_out_of_reach,
    weight_source,
)
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.placement.target_policy import NodeDecision, Operands, Slots, TargetPolicy
from onnxfq.placement.weighted_ops import activation_placement, place_input, refuse
from onnxfq.support.reasons import Reason


def decide_operators(
    graph: gs.Graph, weighted: list[NodeDecision], recipe: Recipe, policy: TargetPolicy
) -> list[NodeDecision]:
    """Add the placements of operators that the policy lists to `weighted`.

    Args:
        graph: the model, bodies included.
        weighted: decisions on weighted operators; float decisions do not change.
        recipe: formats, and overrides by node, operator and tensor.
        policy: slots to place, by operator.

    Returns the decisions on weighted operators in their order, then one for every other listed node. Raises
    RecipeError for placements that the target cannot take.
    """
    if not policy.operators:
        return weighted
    found, beyond = {decision.node: decision for decision in weighted}, nodes_out_of_reach(graph)
    for node in nodes_by_graph(graph):
        slots = policy.operators.get(node.op)
        known = found.get(node.name) or NodeDecision(node.name, node.op, ())
        if slots is None or known.why_float or node.name in beyond or node.domain not in STANDARD_DOMAINS:
            continue
        placements = tuple(_placements(node, slots, graph, recipe, policy))
        if placements:
            found[node.name] = _decide(node, known, placements, recipe, policy)
    return list(found.values())


def _decide(
    node: gs.Node,
    known: NodeDecision,
    placements: tuple[Placement, ...],
    recipe: Recipe,
    policy: TargetPolicy,
) -> NodeDecision:
    needs = tuple(dict.fromkeys((*known.needs, *(use for p in placements for use in p.uses))))
    if any(recipe.keeps_float(node.name, node.op, placement.tensor) for placement in placements):
        why = Reason("override", f"kept in float by an override of recipe {recipe.name}")
        return known if known.placements else replace(known, needs=needs, why_float=why)
    sources = [weight_source(node, slot) for slot in range(len(node.inputs))]
    shapes = {one.tensor.name: tuple(one.tensor.shape) for one in sources if one is not None}
    operands = Operands(node, placements, shapes)
    refuse(operands, policy)
    why = Reason("target", "" if known.placements else policy.keeps_float(operands))
    if why:
        return replace(known, needs=needs, why_float=why)
    return replace(known, needs=needs, placements=(*known.placements, *placements))


def _placements(
    node: gs.Node, slots: Slots, graph: gs.Graph, recipe: Recipe, policy: TargetPolicy
) -> Iterator[Placement]:
    for slot in slots.inputs:
        if slot < len(node.inputs) and _is_open(node.inputs[slot]):
            placement = place_input(node, slot, recipe, policy)
            if placement is not None:
                yield placement
    for slot in slots.outputs:
        if slot < len(node.outputs) and _is_open(node.outputs[slot]):
            yield from _place_output(node, node.outputs[slot], graph, recipe)


def _is_open(tensor: gs.Tensor) -> bool:
    """Tell whether `tensor` holds floats that the model does not quantize itself."""
    return float_type(tensor) is not None and not is_dequantized(tensor)


def _place_output(node: gs.Node, tensor: gs.Tensor, graph: gs.Graph, recipe: Recipe) -> Iterator[Placement]:
    scheme = recipe.activation_for(node.name, node.op, tensor.name)
    uses = tuple(_uses_of(tensor, graph.outputs))
    if scheme is not None and uses and scheme.granularity == "per_tensor" and not scheme.dynamic:
        yield activation_placement(tensor, scheme, PER_TENSOR, uses, f"output of {node.op}")


def _uses_of(tensor: gs.Tensor, outputs: Collection[gs.Tensor]) -> Iterator[Use]:
    """Yield every slot that reads `tensor`, and its position among the model outputs."""
    readers = {id(reader): reader for reader in tensor.outputs}
    for reader in readers.values():
        yield from (Use(reader.name, slot) for slot, read in enumerate(reader.inputs) if read is tensor)
    yield from (Use("", number) for number, output in enumerate(outputs) if output is tensor)

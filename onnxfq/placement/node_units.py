"""Node units: operators that a runtime fuses with pairs on all their computed inputs and on their outputs.

A product with a pair behind it is the start of a chain. An operator between products joins the chain if one
of its computed inputs comes from a unit, and a unit or a quantized product reads its result. Elsewhere its
pairs would only add work and noise. Source: ONNX Runtime, `qdq_selector_action_transformer`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

from onnxfq.documents.recipe import Recipe
from onnxfq.graph.ops import DATA_MOVEMENT, STANDARD_DOMAINS
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.target_policy import NodeDecision, TargetPolicy


def find_chain_nodes(
    graph: gs.Graph, weighted: Sequence[NodeDecision], recipe: Recipe, policy: TargetPolicy
) -> set[str]:
    """Return the names of the nodes between products that run as node units.

    Args:
        graph: the model, bodies included.
        weighted: decisions on weighted operators.
        recipe: its overrides keep nodes in float.
        policy: operators with `between_units`, and operators that vanish in front of a pair.
    """
    joining = {op for op, slots in policy.operators.items() if slots.between_units}
    products = {d.node for d in weighted if d.placements and policy.runs_in_integers(d.placements)}
    behind = {op for op, slots in policy.operators.items() if slots.outputs}
    starts = {
        decision.node for decision in weighted if decision.node in products and decision.op_type in behind
    }
    nodes = [
        node
        for node in nodes_by_graph(graph)
        if node.op in joining
        and node.domain in STANDARD_DOMAINS
        and not recipe.explain_float(node.name, node.op, "")
    ]
    units = {node.name for node in nodes}
    count = -1
    while count != len(units):
        count = len(units)
        for node in nodes:
            if node.name in units and not _is_fed(node, units | starts, policy):
                units.remove(node.name)
        for node in reversed(nodes):
            if node.name in units and not _is_read(node.outputs[0], units | products, policy):
                units.remove(node.name)
    return units


def find_written(tensor: gs.Tensor, outputs: Collection[gs.Tensor], absorbed: Collection[str]) -> gs.Tensor:
    """Return the tensor behind the operators that vanish in front of a pair, which has the pair.

    Args:
        tensor: the result of a node.
        outputs: the outputs of the graph, which nothing may vanish behind.
        absorbed: such operators.
    """
    while len(tensor.outputs) == 1 and tensor.outputs[0].op in absorbed:
        if any(tensor is output for output in outputs):
            break
        tensor = tensor.outputs[0].outputs[0]
    return tensor


def _is_fed(node: gs.Node, units: Collection[str], policy: TargetPolicy) -> bool:
    return any(_comes_from(tensor, units, policy) for tensor in node.inputs if tensor.inputs)


def _comes_from(tensor: gs.Tensor, units: Collection[str], policy: TargetPolicy) -> bool:
    """Tell whether a unit computes `tensor`, or what data movement makes it from."""
    passed = DATA_MOVEMENT | policy.absorbed
    while tensor.inputs:
        producer = tensor.inputs[0]
        if producer.name in units or producer.op not in passed:
            return producer.name in units
        tensor = producer.inputs[0]
    return False


def _is_read(tensor: gs.Tensor, units: Collection[str], policy: TargetPolicy) -> bool:
    passed, tensors, seen = DATA_MOVEMENT | policy.absorbed, [tensor], set()
    while tensors:
        current = tensors.pop()
        for reader in current.outputs:
            if reader.name in units:
                return True
            if reader.op in passed and id(reader) not in seen:
                seen.add(id(reader))
                tensors += reader.outputs
    return False

"""What is around a body, If, Loop or Scan, and where a state goes through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfq.graph.model import all_graphs, bodies


@dataclass(frozen=True)
class Holder:
    """The node around a body, and the graph or body that has this node."""

    scope: gs.Graph
    node: gs.Node
    body: gs.Graph


def holders(graph: gs.Graph) -> dict[int, Holder]:
    """Return what holds each body of `graph`, by the id of the body."""
    return {
        id(body): Holder(scope, node, body)
        for scope in all_graphs(graph)
        for node in scope.nodes
        for body in bodies(node)
    }


def place_of_state(node: gs.Node) -> tuple[int, int, int]:
    """Return how many states Loop or Scan `node` carries, and what its body has before them: inputs, outputs.

    Both have states first and then what is scanned: Loop after the trip count and the condition.
    """
    if node.op != "Loop":
        return len(node.inputs) - node.attrs["num_scan_inputs"], 0, 0
    while len(node.inputs) < 2:
        node.inputs.append(gs.Variable.empty())
    return len(node.inputs) - 2, 2, 1


def insert_tensors(tensors: list[gs.Tensor], at: int, more: Sequence[gs.Tensor]) -> None:
    """Put `more` into a list of inputs or outputs, the first of them at `at`."""
    for offset, tensor in enumerate(more):
        tensors.insert(at + offset, tensor)

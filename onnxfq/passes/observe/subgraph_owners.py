"""Owner nodes of a body (If, Loop, Scan), and the path of a state through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfq.graph.model import bodies, list_graphs


@dataclass(frozen=True)
class Holder:
    """The owner node of a body, and the graph or body that contains this node."""

    scope: gs.Graph
    node: gs.Node
    body: gs.Graph


def holders(graph: gs.Graph) -> dict[int, Holder]:
    """Return the holder of each body of `graph`, by the id of the body."""
    return {
        id(body): Holder(scope, node, body)
        for scope in list_graphs(graph)
        for node in scope.nodes
        for body in bodies(node)
    }


def place_of_state(node: gs.Node) -> tuple[int, int, int]:
    """Return (states that Loop or Scan `node` carries, body inputs before them, body outputs before them).

    Both put states before scanned tensors; Loop puts the trip count and the condition first.
    """
    if node.op != "Loop":
        return len(node.inputs) - node.attrs["num_scan_inputs"], 0, 0
    while len(node.inputs) < 2:
        node.inputs.append(gs.Variable.empty())
    return len(node.inputs) - 2, 2, 1


def insert_tensors(tensors: list[gs.Tensor], at: int, more: Sequence[gs.Tensor]) -> None:
    """Insert `more` into a list of inputs or outputs, the first of them at `at`."""
    for offset, tensor in enumerate(more):
        tensors.insert(at + offset, tensor)

"""Loop-carried state through If, Loop and Scan, from the main graph and back.

If: the body reads the state from outside, and every other branch returns it unchanged. Loop and Scan: the
body carries it from one iteration to the next. A result that does not read the state leaves its body the same
way, through If alone: the state is then the result of a branch that was not taken.

Holders are the owner nodes of a body (If, Loop, Scan).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics import empty_state
from onnxfq.graph.edit import Editor, custom_node
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


class CarriedState:
    """Path of a state into `scope`, a body or the main graph itself."""

    def __init__(
        self, editor: Editor, around: dict[int, Holder], scope: gs.Graph, start: gs.Tensor, name: str
    ) -> None:
        """Lead `start` to `scope`.

        Args:
            editor: of the graph.
            around: result of `holders`.
            scope: the body or main graph that uses the state.
            start: the state, a tensor of the main graph.
            name: prefix of all added names.
        """
        self._editor, self._name, self._start = editor, name, start
        self._steps: list[tuple[Holder, int, gs.Tensor]] = []
        given = start
        for holder in reversed(enclosing(around, scope)):
            outside, at = given, 0
            if holder.node.op != "If":
                at, before, _ = place_of_state(holder.node)
                given = self._variable("before")
                insert_tensors(holder.node.inputs, before + at, [outside])
                insert_tensors(holder.body.inputs, before + at, [given])
            self._steps.append((holder, at, outside))
        self.inside = given
        """The state that nodes in the scope read."""

    def export_state(self, changed: gs.Variable) -> gs.Variable:
        """Return a variable of the main graph that holds `changed`, a result of a node in the scope."""
        for holder, at, outside in reversed(self._steps):
            outer = self._variable("outer", changed)
            if holder.node.op == "If":
                for body in bodies(holder.node):
                    body.outputs.append(changed if body is holder.body else self._pass_state(body, outside))
                holder.node.outputs.append(outer)
            else:
                after = place_of_state(holder.node)[2]
                insert_tensors(holder.body.outputs, after + at, [changed])
                insert_tensors(holder.node.outputs, at, [outer])
            changed = outer
        return changed

    def merge(self, tensor: gs.Tensor, attrs: dict[str, Any]) -> gs.Variable:
        """Merge the statistics of `tensor`, in the scope, into the state by operator MergeStatistics.

        Returns:
            A variable of the main graph that holds the state and has the name from the constructor.
        """
        made = self._editor.variable(f"{self._name}/inside", like=self._start)
        sources = [tensor, self.inside]
        node = custom_node("MergeStatistics", self._name, attrs=dict(attrs), inputs=sources, outputs=[made])
        self._editor.insert_after(tensor, [node])
        merged = self.export_state(made)
        merged.name = self._name
        return merged

    def _pass_state(self, body: gs.Graph, outside: gs.Tensor) -> gs.Variable:
        same = self._variable("unchanged")
        self._editor.append(body, [gs.Node("Identity", same.name, inputs=[outside], outputs=[same])])
        return same

    def _variable(self, what: str, like: gs.Tensor | None = None) -> gs.Variable:
        return self._editor.variable(f"{self._name}/{what}", like=self._start if like is None else like)


def make_empty_state(editor: Editor, histogram: bool, groups: int | None) -> gs.Constant:
    """Return the result of `empty_state` as a constant."""
    state = empty_state(histogram, groups)
    sizes = state.shape if histogram else state.shape[:-1]
    name = "/".join(["onnxfq/statistics/empty", *map(str, sizes)])
    return editor.constant(name, state)


def enclosing(around: dict[int, Holder], scope: gs.Graph) -> list[Holder]:
    """Return the holders around `scope`, innermost first."""
    found = []
    holder = around.get(id(scope))
    while holder is not None:
        found.append(holder)
        holder = around.get(id(holder.scope))
    return found

"""One state from the main graph into an If, Loop or Scan body and out again.

If: the body reads the state from outside, and every other branch gives it back unchanged. Loop and Scan: the
body carries it from one iteration to the next. What a body gives without reading the state goes the same way,
through If alone: the state is then what a branch gives that was not taken.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics import empty_state
from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import bodies
from onnxfq.passes.custom_domain import custom_node
from onnxfq.passes.observe.subgraph_owners import Holder, insert_tensors, place_of_state


class CarriedState:
    """The way of a state into `scope`, a body or the main graph itself."""

    def __init__(
        self, editor: Editor, around: dict[int, Holder], scope: gs.Graph, start: gs.Tensor, name: str
    ) -> None:
        """Lead `start`, of the main graph, to `scope`. around: of `holders`. name: begins what is added."""
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
        """What a node in the scope reads."""

    def out(self, changed: gs.Variable) -> gs.Variable:
        """Return a variable of the main graph that holds `changed`, what a node in the scope gives."""
        for holder, at, outside in reversed(self._steps):
            outer = self._variable("outer", changed)
            if holder.node.op == "If":
                for body in bodies(holder.node):
                    body.outputs.append(changed if body is holder.body else self._unchanged(body, outside))
                holder.node.outputs.append(outer)
            else:
                after = place_of_state(holder.node)[2]
                insert_tensors(holder.body.outputs, after + at, [changed])
                insert_tensors(holder.node.outputs, at, [outer])
            changed = outer
        return changed

    def merge(self, tensor: gs.Tensor, attrs: dict[str, Any]) -> gs.Variable:
        """Merge what `tensor`, in the scope, is into the state by operator MergeStatistics.

        Return a variable of the main graph that holds it and has the name given at first.
        """
        made = self._editor.variable(f"{self._name}/inside", like=self._start)
        sources = [tensor, self.inside]
        node = custom_node("MergeStatistics", self._name, attrs=dict(attrs), inputs=sources, outputs=[made])
        self._editor.insert_after(tensor, [node])
        merged = self.out(made)
        merged.name = self._name
        return merged

    def _unchanged(self, body: gs.Graph, outside: gs.Tensor) -> gs.Variable:
        same = self._variable("unchanged")
        self._editor.append(body, [gs.Node("Identity", same.name, inputs=[outside], outputs=[same])])
        return same

    def _variable(self, what: str, like: gs.Tensor | None = None) -> gs.Variable:
        return self._editor.variable(f"{self._name}/{what}", like=self._start if like is None else like)


def make_empty_state(editor: Editor, histogram: bool, groups: int | None) -> gs.Constant:
    """Return what `empty_state` returns as a constant."""
    state = empty_state(histogram, groups)
    sizes = state.shape if histogram else state.shape[:-1]
    name = "/".join(["onnxfq/statistics/empty", *map(str, sizes)])
    return editor.constant(name, partial(make_constant, values=state))


def enclosing(around: dict[int, Holder], scope: gs.Graph) -> list[Holder]:
    """Return what holds `scope`, what holds that, and so on."""
    found = []
    holder = around.get(id(scope))
    while holder is not None:
        found.append(holder)
        holder = around.get(id(holder.scope))
    return found

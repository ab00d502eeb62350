"""Edits of a graph: put nodes between a tensor and some of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_graphsurgeon as gs

from onnxfq.errors import PlanError, nearest
from onnxfq.graph.analysis import body_nodes
from onnxfq.plan import Placement


class Editor:
    """Edits one graph in place; knows its nodes and tensors by name."""

    def __init__(self, graph: gs.Graph) -> None:
        """Take `graph`, which the caller owns."""
        self.graph = graph
        self._nodes = {node.name: node for node in graph.nodes}
        self._tensors: dict[str, gs.Tensor] = dict(graph.tensors())
        # A body may not give a name that the graph around it has.
        inside = (t.name for _, inner in body_nodes(graph) for t in (*inner.inputs, *inner.outputs))
        self._taken = {*self._tensors, *inside}

    def tensor(self, placement: Placement) -> gs.Tensor:
        """Return the placed tensor. Raises PlanError with the nearest names when the graph lacks it."""
        try:
            return self._tensors[placement.tensor]
        except KeyError:
            hint = nearest(placement.tensor, self._tensors)
            raise PlanError(
                f"the plan places tensor {placement.tensor!r}, which the model lacks{hint}"
            ) from None

    def rewire(self, placement: Placement, replacement: gs.Tensor) -> None:
        """Make every use of `placement` read `replacement` in place of its tensor.

        Raises PlanError when a use names an unknown node or a slot that reads another tensor.
        """
        if not placement.uses:
            raise PlanError(
                f"the plan places tensor {placement.tensor!r} for no use; name one, or remove the placement"
            )
        for use in placement.uses:
            node = self._nodes.get(use.node)
            if node is None:
                hint = nearest(use.node, self._nodes)
                raise PlanError(f"the plan names node {use.node!r}, which the model lacks{hint}")
            read = node.inputs[use.input].name if 0 <= use.input < len(node.inputs) else None
            if read != placement.tensor:
                raise PlanError(
                    f"the plan says input {use.input} of node {use.node!r} is {placement.tensor!r}, it reads "
                    f"{'nothing' if read is None else repr(read)}; make a new plan with `onnxfq plan`"
                )
            node.inputs[use.input] = replacement

    def insert_after(self, tensor: gs.Tensor, nodes: Sequence[gs.Node]) -> None:
        """Add `nodes` to the graph right after the node that gives `tensor`, or first of all."""
        self._insert(self._index(tensor.inputs[0]) + 1 if tensor.inputs else 0, nodes)

    def insert_before_uses(self, placement: Placement, nodes: Sequence[gs.Node]) -> None:
        """Add `nodes` to the graph right before the first node that `placement` rewires."""
        self._insert(min(self._index(self._nodes[use.node]) for use in placement.uses), nodes)

    def _index(self, wanted: gs.Node) -> int:
        # By identity: graphsurgeon compares nodes by their content.
        return next(i for i, node in enumerate(self.graph.nodes) if node is wanted)

    def _insert(self, at: int, nodes: Sequence[gs.Node]) -> None:
        for offset, node in enumerate(nodes):
            node.name = self.unused(node.name, self._nodes)
            self._nodes[node.name] = node
            self.graph.nodes.insert(at + offset, node)

    def unused(self, name: str, taken: Iterable[str] | None = None) -> str:
        """Return `name`, or `name_2`, `name_3` ... when the graph has that name already."""
        names = self._taken if taken is None else taken
        free, number = name, 1
        while free in names:
            number += 1
            free = f"{name}_{number}"
        return free

    def _add(self, tensor: gs.Tensor) -> None:
        self._tensors[tensor.name] = tensor
        self._taken.add(tensor.name)

    def variable(self, name: str, like: gs.Tensor | None = None) -> gs.Variable:
        """Make a variable with an unused name, dtype and shape as of `like`."""
        made = gs.Variable(self.unused(name), *((like.dtype, like.shape) if like is not None else ()))
        self._add(made)
        return made

    def constant(self, name: str, make: Callable[[str], gs.Constant]) -> gs.Constant:
        """Make a constant with an unused name."""
        made = make(self.unused(name))
        self._add(made)
        return made

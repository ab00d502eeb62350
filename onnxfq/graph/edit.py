"""Graph edits: insertion of nodes between a tensor and its readers, in bodies too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any, TypeVar

import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.errors import PlanError, nearest
from onnxfq.graph.constants import make_constant
from onnxfq.graph.model import list_graphs
from onnxfq.graph.names import TensorUses, pick_name
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.graph.queries import collect_tensors

Placed = TypeVar("Placed", bound=TensorUses)

_BEFORE = 64
"""Number of nodes before the last hit at which the next search starts."""


class Editor:
    """Editor of one graph and its bodies, in place; finds nodes and tensors by name."""

    def __init__(self, graph: gs.Graph) -> None:
        """Index `graph`, which the caller owns."""
        self.graph = graph
        self._nodes = {node.name: node for scope in list_graphs(graph) for node in scope.nodes}
        self._scopes = {node.name: scope for scope in list_graphs(graph) for node in scope.nodes}
        self._tensors = collect_tensors(graph)
        self._made: dict[str, gs.Constant] = {}
        self._last: dict[int, int] = {}

    def tensor(self, placement: TensorUses) -> gs.Tensor:
        """Return the placed tensor. Raises PlanError with the nearest names when the graph lacks it."""
        try:
            return self._tensors[placement.tensor]
        except KeyError:
            hint = nearest(placement.tensor, self._tensors)
            raise PlanError(
                f"the plan places tensor {placement.tensor!r}, which the model lacks{hint}"
            ) from None

    def find(self, name: str) -> gs.Tensor | None:
        """Return the tensor of that name, or None."""
        return self._tensors.get(name)

    def node(self, name: str) -> gs.Node:
        """Return the node of that name, here or in a body."""
        return self._nodes[name]

    def scope_of(self, tensor: gs.Tensor) -> gs.Graph:
        """Return the graph or body that computes `tensor` or has it as an input."""
        if tensor.inputs:
            return self._scopes[tensor.inputs[0].name]
        owners = (
            scope for scope in list_graphs(self.graph) if any(tensor is given for given in scope.inputs)
        )
        return next(owners, self.graph)

    def split_by_scope(self, placement: Placed) -> list[Placed]:
        """Return a copy of `placement` for each graph or body that uses it, with the uses there.

        A pair belongs in the body of its reader; builders fall back to float between two bodies. Raises
        PlanError when there is no use, or one names an unknown node.
        """
        if not placement.uses:
            raise PlanError(
                f"the plan places tensor {placement.tensor!r} for no use; name one, or remove the placement"
            )
        parts: dict[int, list[int]] = {}
        for number, use in enumerate(placement.uses):
            scope = self._scopes.get(use.node) if use.node else self.graph
            if scope is None:
                hint = nearest(use.node, self._nodes)
                raise PlanError(f"the plan names node {use.node!r}, which the model lacks{hint}")
            parts.setdefault(id(scope), []).append(number)
        return [
            placement.model_copy(update={"uses": tuple(placement.uses[number] for number in numbers)})
            for numbers in parts.values()
        ]

    def rewire(self, placement: TensorUses, replacement: gs.Tensor) -> None:
        """Make every use of `placement` read `replacement` instead of its tensor.

        `placement` comes from `split_by_scope`. Raises PlanError when a use names a slot that reads another
        tensor.
        """
        outputs = self.graph.outputs if any(not use.node for use in placement.uses) else []
        for use in placement.uses:
            if not use.node:
                continue
            node = self._nodes[use.node]
            read = node.inputs[use.input].name if 0 <= use.input < len(node.inputs) else None
            if read not in (placement.tensor, self._tensors[placement.tensor].name):
                raise PlanError(
                    f"the plan says input {use.input} of node {use.node!r} is {placement.tensor!r}, it reads "
                    f"{'nothing' if read is None else repr(read)}; make a new plan with `onnxfq plan`"
                )
            node.inputs[use.input] = replacement
        for number, tensor in enumerate(outputs):
            if tensor.name == placement.tensor:  # an output of the model keeps its name
                tensor.name, replacement.name = self.pick_name(f"{tensor.name}/float"), tensor.name
                outputs[number] = replacement

    def insert_before(self, placement: TensorUses, tensor: gs.Tensor, nodes: Sequence[gs.Node]) -> None:
        """Add `nodes`, which read the placed `tensor`, to the scope of the uses of `placement`.

        They follow the node that computes the tensor. They come first in the scope for a tensor from outside,
        and before the first use for a constant.
        """
        node = placement.uses[0].node
        scope = self._scopes[node] if node else self.graph
        if isinstance(tensor, gs.Constant):
            at = min(self._index(scope, self._nodes[use.node]) for use in placement.uses)
        else:
            inside = tensor.inputs and self._scopes[tensor.inputs[0].name] is scope
            at = self._index(scope, tensor.inputs[0]) + 1 if inside else 0
        self._insert(scope, at, nodes)

    def insert_after(self, tensor: gs.Tensor, nodes: Sequence[gs.Node]) -> None:
        """Add `nodes` right after the node that computes `tensor`; first in the scope for an input of it."""
        scope = self.scope_of(tensor)
        self._insert(scope, self._index(scope, tensor.inputs[0]) + 1 if tensor.inputs else 0, nodes)

    def append(self, scope: gs.Graph, nodes: Sequence[gs.Node]) -> None:
        """Add `nodes` at the end of `scope`."""
        self._insert(scope, len(scope.nodes), nodes)

    def insert_after_node(self, scope: gs.Graph, node: gs.Node, nodes: Sequence[gs.Node]) -> None:
        """Add `nodes` to `scope`, right after its `node`."""
        self._insert(scope, self._index(scope, node) + 1, nodes)

    def _insert(self, scope: gs.Graph, at: int, nodes: Sequence[gs.Node]) -> None:
        for offset, node in enumerate(nodes):
            node.name = self.pick_name(node.name, self._nodes)
            self._nodes[node.name] = node
            self._scopes[node.name] = scope
            scope.nodes.insert(at + offset, node)

    def pick_name(self, name: str, taken: Collection[str] | None = None) -> str:
        """Return `name`, or `name_2`, `name_3` ... if the graph or a body already uses it."""
        return pick_name(name, self._tensors if taken is None else taken)

    def variable(self, name: str, like: gs.Tensor | None = None) -> gs.Variable:
        """Make a variable with an unused name and the dtype and shape of `like`."""
        made = gs.Variable(self.pick_name(name), *((like.dtype, like.shape) if like is not None else ()))
        self._tensors[made.name] = made
        return made

    def constant(self, name: str, values: NDArray[Any] | Callable[[str], gs.Constant]) -> gs.Constant:
        """Make a constant with an unused name; return the same constant for the same `name`.

        A constant of several bodies is therefore stored once. A function makes it only when it is needed.
        """
        if name not in self._made:
            free = self.pick_name(name)
            made = values(free) if callable(values) else make_constant(free, values)
            self._made[name] = self._tensors[made.name] = made
        return self._made[name]

    def _index(self, scope: gs.Graph, wanted: gs.Node) -> int:
        """Return the index of `wanted`; search first near the last hit, because edits follow the graph."""
        nodes = scope.nodes
        start = max(0, self._last.get(id(scope), 0) - _BEFORE)
        places = chain(range(start, len(nodes)), range(min(start, len(nodes))))
        # By identity: graphsurgeon compares nodes by their content.
        self._last[id(scope)] = place = next(i for i in places if nodes[i] is wanted)
        return place


_DOMAIN_VERSION = 1


def custom_node(op: str, name: str, domain: str = ONNXFQ_DOMAIN, **fields: object) -> gs.Node:
    """Make a node of `domain`; `fields` are attrs, inputs, outputs."""
    return gs.Node(op=op, name=name, domain=domain, **fields)


def import_domain(graph: gs.Graph, domain: str = ONNXFQ_DOMAIN) -> None:
    """Declare the domain among the operator sets of `graph`."""
    opsets = list(graph.import_domains or [])
    if all(o.domain != domain for o in opsets):
        graph.import_domains = [*opsets, onnx.helper.make_opsetid(domain, _DOMAIN_VERSION)]

"""Nested graph scopes: makers, readers, types and values of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.follow import is_known_number
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import RESHAPES, SCALES

Shape = tuple[int | None, ...]

# Operators allowed between an initializer and a scale, as exporters write them.
_ARITHMETIC = RESHAPES | SCALES | {"Add", "Cast", "Sub"}


@dataclass(frozen=True, eq=False)
class NodeSite:
    """Node with its graph."""

    node: onnx.NodeProto
    scope: Scope

    @property
    def name(self) -> str:
        """Name of the node, or of its first output if it has none."""
        return str(self.node.name or self.node.output[0])

    @property
    def op(self) -> str:
        """Op type; TensorRT's parser ignores domains."""
        return str(self.node.op_type)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or `default`."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        return default

    def input(self, slot: int) -> str:
        """Return the name of input `slot`; empty if it is left out."""
        return str(self.node.input[slot]) if slot < len(self.node.input) else ""

    @property
    def inputs(self) -> list[Value]:
        """Input tensors by slot."""
        return [self.scope.tensor(name) for name in self.node.input]

    @property
    def outputs(self) -> list[Value]:
        """Output tensors."""
        return [self.scope.tensor(name) for name in self.node.output]


@dataclass(frozen=True, eq=False)
class Value:
    """Tensor with its graph and the properties that patterns need (`graph.follow`)."""

    name: str
    scope: Scope

    @property
    def shape(self) -> Shape | None:
        """Shape, with None for open dimensions; None if the rank is unknown."""
        return self.scope.shape(self.name)

    @property
    def inputs(self) -> list[NodeSite]:
        """The node that produces it; empty for constants and inputs."""
        maker = self.scope.maker(self.name)
        return [] if maker is None else [maker]

    @property
    def outputs(self) -> list[NodeSite]:
        """The nodes that read it."""
        return self.scope.readers(self.name)


class Scope:
    """Graph with its bodies and its enclosing graph."""

    def __init__(self, graph: onnx.GraphProto, opset: int, parent: Scope | None = None) -> None:
        """Index a graph.

        Args:
            graph: the graph.
            opset: opset of its model.
            parent: the graph whose node has it as a body; None for the main graph.
        """
        self.graph, self.opset, self.parent = graph, opset, parent
        self.sites = [NodeSite(node, self) for node in graph.node]
        self.bodies = [Scope(body, opset, self) for node in graph.node for body in bodies(node)]
        self.index = GraphIndex(graph)
        self._sites = {id(site.node): site for site in self.sites}
        self._values: dict[str, NDArray[Any] | None] = {}
        self._tensors: dict[str, Value] = {}
        self.concat_pairs: dict[str, Any] = {}
        """Cached results of `operands` for the inputs of each Concat, by the name of its output."""

    def iterate_sites(self) -> Iterator[NodeSite]:
        """Yield the nodes of this graph, then of each body."""
        yield from self.sites
        for body in self.bodies:
            yield from body.iterate_sites()

    def iterate_scopes(self) -> Iterator[Scope]:
        """Yield this graph and every body below it."""
        yield self
        for body in self.bodies:
            yield from body.iterate_scopes()

    def owner(self, tensor: str) -> Scope | None:
        """Return the graph that has `tensor`, this one or an enclosing one; None if no graph has it."""
        scope: Scope | None = self
        while scope is not None:
            index = scope.index
            if tensor in index.makers or tensor in index.constants or tensor in index.values:
                return scope
            scope = scope.parent
        return None

    def tensor(self, name: str) -> Value:
        """Return the tensor called `name`, the same object for each of its readers."""
        owner = self.owner(name) or self
        return owner._tensors.setdefault(name, Value(name, owner))

    def maker(self, tensor: str) -> NodeSite | None:
        """Return the node that produces `tensor`; None for constants and inputs."""
        owner = self.owner(tensor)
        node = None if owner is None else owner.index.makers.get(tensor)
        return None if owner is None or node is None else owner._sites[id(node)]

    def readers(self, tensor: str) -> list[NodeSite]:
        """Return the nodes, here and in the bodies below, that read `tensor` of this graph."""
        scopes = self.iterate_scopes()
        return [scope._sites[id(node)] for scope in scopes for node in scope.index.readers.get(tensor, ())]

    def initializer(self, tensor: str) -> onnx.TensorProto | None:
        """Return the stored constant called `tensor`: an initializer, or the value of a Constant node."""
        owner = self.owner(tensor)
        if owner is None:
            return None
        if tensor in owner.index.constants:
            return owner.index.constants[tensor]
        maker = owner.maker(tensor)
        return maker.attribute("value") if maker is not None and maker.op == "Constant" else None

    def is_constant(self, tensor: str) -> bool:
        """Tell whether `tensor` is computed from constants alone, with or without quantization."""
        owner = self.owner(tensor)
        return owner is not None and tensor in owner._constants

    @cached_property
    def _constants(self) -> set[str]:
        """The constants of this graph, and what it computes from constants alone."""
        outer, found = self.parent, set(self.index.constants)
        for node in self.graph.node:
            unknown = {name for name in node.input if name} - found
            own = any(name in self.index.makers or name in self.index.values for name in unknown)
            if not own and all(outer is not None and outer.is_constant(name) for name in unknown):
                found.update(node.output)
        return found

    def value(self, tensor: str) -> NDArray[Any] | None:
        """Return the values of a constant, arithmetic on constants included; None for other tensors."""
        left = [(self, tensor)]
        while left:
            scope, name = left[-1]
            owner = scope.owner(name)
            given = [] if owner is None or name in owner._values else owner._calculated_from(name)
            left += given
            if not given:
                left.pop()
                if owner is not None and name not in owner._values:
                    owner._values[name] = owner._evaluate(name)
        return None if owner is None else owner._values[tensor]

    def _calculated_from(self, tensor: str) -> list[tuple[Scope, str]]:
        """Return the tensors, with a graph that sees them, whose values are needed and not known yet."""
        maker = self.index.makers.get(tensor)
        if maker is None or maker.op_type not in _ARITHMETIC:
            return []
        owners = {name: owner for name in maker.input if (owner := self.owner(name)) is not None}
        return [(owner, name) for name, owner in owners.items() if name not in owner._values]

    def _evaluate(self, tensor: str) -> NDArray[Any] | None:
        stored = self.initializer(tensor)
        if stored is not None:
            return tensor_array(stored)
        maker = self.index.makers.get(tensor)
        if maker is None or maker.op_type not in {*_ARITHMETIC, "Constant"}:
            return None
        values = {name: self.value(name) for name in maker.input if name}
        if any(value is None for value in values.values()):
            return None
        names = [onnx.helper.make_empty_tensor_value_info(name) for name in (*values, tensor)]
        graph = onnx.helper.make_graph([maker], "constant", names[:-1], names[-1:])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self.opset)])
        return np.asarray(ReferenceEvaluator(model).run(None, values)[0])

    def is_number(self, tensor: str) -> bool:
        """Tell whether `tensor` is one number that TensorRT folds from constants and shapes."""
        return is_known_number(
            self.tensor(tensor), lambda read: not read.name or read.scope.value(read.name) is not None
        )

    def dtype(self, tensor: str) -> int:
        """Return the ONNX element type of `tensor`; 0 if unknown."""
        stored = self.initializer(tensor)
        if stored is not None:
            return int(stored.data_type)
        owner = self.owner(tensor)
        return 0 if owner is None else owner.index.types.get(tensor, 0)

    def shape(self, tensor: str) -> Shape | None:
        """Return the shape of `tensor`, with None for open dimensions; None if the rank is unknown."""
        stored = self.initializer(tensor)
        if stored is not None:
            return tuple(stored.dims)
        owner = self.owner(tensor)
        return None if owner is None else owner.index.shape(tensor)


def infer_types(proto: onnx.ModelProto, known: frozenset[str]) -> onnx.ModelProto:
    """Return `proto` without local functions, with types and shapes as far as ONNX infers them.

    Args:
        proto: the model.
        known: names of functions to keep, because the target has the operator.
    """
    if proto.functions:
        given, proto = proto, onnx.ModelProto()
        proto.CopyFrom(given)
        proto = inline_model(proto, known)
    return with_shapes(proto)

"""Nodes and tensors as the rules read them: `SiteIndex`, the graph index with values of constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.follow import is_known_number
from onnxfq.graph.index import GraphIndex, Shape
from onnxfq.graph.model import default_opset, list_graphs, list_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import evaluate_node, name_tensors
from onnxfq.graph.ops import RESHAPES, SCALES

# Operators allowed between an initializer and a scale, as exporters write them.
_ARITHMETIC = RESHAPES | SCALES | {"Add", "Cast", "Sub"}


@dataclass(frozen=True, eq=False)
class NodeSite:
    """Node with its place.

    Attributes:
        graph: number of its graph: 0 for the main graph, then the bodies.
    """

    node: onnx.NodeProto
    graph: int
    index: SiteIndex

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
        return attributes_of(self.node).get(name, default)

    def input(self, slot: int) -> str:
        """Return the name of input `slot`; empty if it is left out."""
        return input_name(self.node, slot)

    @property
    def inputs(self) -> list[Value]:
        """Input tensors by slot."""
        return [self.index.tensor(name) for name in self.node.input]

    @property
    def outputs(self) -> list[Value]:
        """Output tensors."""
        return [self.index.tensor(name) for name in self.node.output]


@dataclass(frozen=True, eq=False)
class Value:
    """Tensor with the properties that patterns need (`graph.follow`)."""

    name: str
    index: SiteIndex

    @property
    def shape(self) -> Shape | None:
        """Shape, with None for open dimensions; None if the rank is unknown."""
        return self.index.shape(self.name)

    @property
    def inputs(self) -> list[NodeSite]:
        """The node that produces it; empty for constants and inputs."""
        maker = self.index.maker(self.name)
        return [] if maker is None else [maker]

    @property
    def outputs(self) -> list[NodeSite]:
        """The nodes that read it."""
        return self.index.reading(self.name)


class SiteIndex(GraphIndex):
    """Index of a model, bodies included, whose nodes are sites and whose constants have values."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        """Index `proto`, in which no two graphs share the name of a tensor."""
        graphs = list_graphs(proto.graph)
        super().__init__(*graphs)
        self.proto, self.opset = proto, default_opset(proto)
        self.sites = [NodeSite(node, at, self) for at, graph in enumerate(graphs) for node in graph.node]
        self._sites = {id(site.node): site for site in self.sites}
        self._values: dict[str, NDArray[Any] | None] = {}
        self._tensors: dict[str, Value] = {}
        self.joined_pairs: dict[str, Any] = {}
        """Cached results of `operands` for the inputs of each operator of `JOINING`, by its output."""

    def tensor(self, name: str) -> Value:
        """Return the tensor called `name`, the same object for each of its readers."""
        return self._tensors.setdefault(name, Value(name, self))

    def maker(self, tensor: str) -> NodeSite | None:
        """Return the node that produces `tensor`; None for constants and inputs."""
        node = self.makers.get(tensor)
        return None if node is None else self._sites[id(node)]

    def reading(self, tensor: str) -> list[NodeSite]:
        """Return the nodes that read `tensor`, once for each slot."""
        return [self._sites[id(node)] for node in self.readers.get(tensor, ())]

    @cached_property
    def stored(self) -> dict[str, onnx.TensorProto | None]:
        """Stored constant -> its tensor; None for a Constant node without the attribute `value`."""
        constants = {s.outputs[0].name: s.attribute("value") for s in self.sites if s.op == "Constant"}
        return {**self.constants, **constants}

    def is_constant(self, tensor: str) -> bool:
        """Tell whether `tensor` is computed from constants alone, with or without quantization."""
        return tensor in self._computed_from_constants

    @cached_property
    def _computed_from_constants(self) -> set[str]:
        names = set(self.constants)
        for node in list_nodes(self.proto.graph):
            if all(name in names for name in node.input if name):
                names.update(filter(None, node.output))
        return names

    def value(self, tensor: str) -> NDArray[Any] | None:
        """Return the values of a constant, arithmetic on constants included; None for other tensors."""
        left = [tensor]
        while left:
            maker = self.makers.get(left[-1])
            computed = maker is not None and maker.op_type in _ARITHMETIC and left[-1] not in self._values
            missing = (
                {name for name in maker.input if name} - self._values.keys() if maker and computed else ()
            )
            left += missing
            if not missing:
                name = left.pop()
                if name not in self._values:
                    self._values[name] = self._evaluate(name)
        return self._values[tensor]

    def _evaluate(self, tensor: str) -> NDArray[Any] | None:
        stored = self.stored.get(tensor)
        if stored is not None:
            return np.asarray(tensor_array(stored))
        maker = self.makers.get(tensor)
        if maker is None or maker.op_type not in {*_ARITHMETIC, "Constant"}:
            return None
        values = {name: value for name in maker.input if name and (value := self._values[name]) is not None}
        if len(values) < len({*maker.input} - {""}):
            return None
        return evaluate_node(maker, values, self.proto)[0]

    def is_number(self, tensor: str) -> bool:
        """Tell whether `tensor` is one number that TensorRT folds from constants and shapes."""
        return is_known_number(self.tensor(tensor), lambda v: not v.name or self.value(v.name) is not None)

    def dtype(self, tensor: str) -> int:
        """Return the ONNX element type of `tensor`; 0 if unknown."""
        stored = self.stored.get(tensor)
        return self.types.get(tensor, 0) if stored is None else int(stored.data_type)

    def shape(self, tensor: str) -> Shape | None:
        """Return the shape of `tensor`, with None for open dimensions; None if the rank is unknown."""
        stored = self.stored.get(tensor)
        return super().shape(tensor) if stored is None else tuple(stored.dims)


def infer_types(proto: onnx.ModelProto, known: frozenset[str]) -> onnx.ModelProto:
    """Return `proto` without local functions, with types and shapes as far as ONNX infers them.

    Tensors of bodies get unique names.

    Args:
        proto: the model.
        known: names of functions to keep, because the target has the operator.
    """
    if proto.functions:
        given, proto = proto, onnx.ModelProto()
        proto.CopyFrom(given)
        proto = inline_model(proto, known)
    shaped = with_shapes(proto)
    name_tensors(shaped)
    return shaped

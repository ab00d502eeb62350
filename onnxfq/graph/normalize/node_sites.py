"""Nodes and tensors as the rules read them: `SiteIndex`, the graph index with values of constants."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.follow import is_known_number
from onnxfq.graph.index import GraphIndex, Shape
from onnxfq.graph.model import bodies, default_opset, list_graphs, list_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import evaluate_node, name_tensors
from onnxfq.graph.ops import MOVES, QDQ_OPS, RANDOM_OPS, REPEATS, RESHAPES, SCALES, SIZES, SPLITS

# Operators allowed between an initializer and a scale, as exporters write them.
CLIPPING = frozenset({"Clip", "Relu"})
"""Operators that runtimes fuse with a pair behind them."""
_ARITHMETIC = RESHAPES | SCALES | {"Add", "Cast", "Sub"}

_Versions = tuple[NDArray[Any], NDArray[Any]]
"""Values of a tensor for each of `_OPEN_SIZES`: equal, unless they depend on an open size."""

_OPEN_SIZES = (1, 7919)
_MOST_NUMBERS = 64
"""Most numbers of a tensor that other operators than `_ARITHMETIC` compute, from constants or sizes."""
_OF_OPEN_SIZES = MOVES | SPLITS | REPEATS | {"Add", "Cast", "Concat", "Mul", "Sub"}
"""Operators of open sizes that are evaluated: a comparison has one result for two sizes, not for all."""
_NOT_EVALUATED = SIZES | RANDOM_OPS | QDQ_OPS


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

    @property
    def domain(self) -> str:
        """Domain of the operator."""
        return str(self.node.domain)

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """The attributes by name, texts as graphsurgeon has them."""
        return {name: _decode(value) for name, value in attributes_of(self.node).items()}

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


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


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
        self._values: dict[str, _Versions | None] = {}
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

    def is_constant(self, tensor: str) -> bool:
        """Tell whether `tensor` is computed from constants and known sizes alone, quantized or not."""
        constants, sizes = self._origins
        return tensor in constants or (tensor in sizes and self.value(tensor) is not None)

    @cached_property
    def _origins(self) -> tuple[set[str], set[str]]:
        """The tensors that are computed from constants, and those that are computed from sizes as well."""
        constants, sizes = set(self.constants), set[str]()
        for node in list_nodes(self.proto.graph):
            names = {name for name in node.input if name}
            if names <= constants:
                constants.update(filter(None, node.output))
            elif node.op_type in SIZES or (names <= constants | sizes and not bodies(node)):
                sizes.update(filter(None, node.output))
        return constants, sizes

    def value(self, tensor: str) -> NDArray[Any] | None:
        """Return the values of a constant, arithmetic on constants and sizes included.

        None for other tensors, for those that depend on an open size, and for more than `_MOST_NUMBERS` of
        sizes or of unusual operators.
        """
        left = [tensor]
        while left:
            maker = self.makers.get(left[-1])
            computed = maker is not None and self._computes(maker, left[-1]) and left[-1] not in self._values
            missing = (
                {name for name in maker.input if name} - self._values.keys() if maker and computed else ()
            )
            left += missing
            if not missing:
                name = left.pop()
                if name not in self._values:
                    self._values[name] = self._evaluate(name)
        found = self._values[tensor]
        if found is None:
            return None
        one, other = found
        return one if one is other or np.array_equal(one, other) else None

    def _known(self, name: str) -> NDArray[Any] | None:
        return self.value(name)

    def _computes(self, maker: onnx.NodeProto, tensor: str) -> bool:
        """Tell whether the inputs of the maker of `tensor` are evaluated."""
        constants, sizes = self._origins
        if tensor not in sizes and maker.op_type in _ARITHMETIC:
            return True
        if tensor not in constants | sizes or maker.op_type in _NOT_EVALUATED or bodies(maker):
            return False
        shape = self.shape(tensor)
        return shape is not None and None not in shape and prod(size or 0 for size in shape) <= _MOST_NUMBERS

    def _evaluate(self, tensor: str) -> _Versions | None:
        if tensor in self.stored:
            return (np.asarray(tensor_array(self.stored[tensor])),) * 2
        maker = self.makers.get(tensor)
        if maker is None or not (self._computes(maker, tensor) or maker.op_type in SIZES):
            return None
        if maker.op_type in SIZES:
            return self._find_sizes(maker)
        inputs = {name for name in maker.input if name}
        known = {name: versions for name in inputs if (versions := self._values[name]) is not None}
        if len(known) < len(inputs):
            return None
        is_open = not all(np.array_equal(one, other) for one, other in known.values())
        if is_open and maker.op_type not in _OF_OPEN_SIZES:
            return None
        place, made = list(maker.output).index(tensor), []
        for at in range(1 + is_open):
            given = {name: versions[at] for name, versions in known.items()}
            try:
                with np.errstate(all="ignore"):  # a number that stands for an open size may be too large
                    made.append(evaluate_node(maker, given, self.proto)[place])
            except ModelError:
                if tensor in self._origins[0]:
                    raise
                return None  # it does not fit either
        return made[0], made[-1]

    def _find_sizes(self, node: onnx.NodeProto) -> _Versions | None:
        """Return the result of a Shape or Size for both numbers that stand for an open size."""
        shape = self.shape(node.input[0])
        if shape is None:
            return None
        part = attributes_of(node)
        made = []
        for other in _OPEN_SIZES:
            sizes = [other if size is None else size for size in shape]
            taken = sizes[part.get("start", 0) : part.get("end", len(sizes))]
            made.append(np.asarray(prod(sizes) if node.op_type == "Size" else taken, np.int64))
        return made[0], made[-1]

    def is_number(self, tensor: str) -> bool:
        """Tell whether `tensor` is one number that TensorRT folds from constants and shapes."""
        return is_known_number(self.tensor(tensor), lambda v: not v.name or self.value(v.name) is not None)

    def dtype(self, tensor: str) -> int:
        """Return the ONNX element type of `tensor`; 0 if unknown."""
        return int(self.stored[tensor].data_type) if tensor in self.stored else self.types.get(tensor, 0)

    def shape(self, tensor: str) -> Shape | None:
        """Return the shape of `tensor`, with None for open dimensions; None if the rank is unknown."""
        return tuple(self.stored[tensor].dims) if tensor in self.stored else super().shape(tensor)


def has_pair_behind(site: NodeSite) -> bool:
    """Tell whether a pair reads the result of `site`, or of a Relu or Clip behind it."""
    readers = [reader for result in site.outputs for reader in result.outputs]
    behind = [last for reader in readers if reader.op in CLIPPING for last in reader.outputs[0].outputs]
    return any(reader.op == "QuantizeLinear" for reader in (*readers, *behind))


def infer_types(proto: onnx.ModelProto, known: frozenset[str]) -> onnx.ModelProto:
    """Return `proto` without local functions, with types and shapes as far as ONNX infers them.

    Tensors of bodies get unique names.

    Args:
        proto: the model.
        known: names of functions to keep, because the target has the operator.
    """
    if proto.functions:
        proto = inline_model(deepcopy(proto), known)
    shaped = with_shapes(proto)
    name_tensors(shaped)
    return shaped

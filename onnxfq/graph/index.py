"""`GraphIndex`: makers and readers of tensors, constants, types, shapes and bodies, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from math import prod
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.graph.bounds import UNKNOWN, Bounds, bounds_of
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.names import Names
from onnxfq.graph.node_fields import attributes_of, constant_value, input_name
from onnxfq.graph.walk import bodies, list_graphs, list_nodes

Shape = tuple[int | None, ...]
"""Sizes of a tensor, None for open ones."""

_MOST_BOUNDED = 1 << 16
"""Most numbers of a constant whose ends are sought: a larger one is a weight or a table."""


class GraphIndex:
    """Tables of the nodes and tensors of ONNX graphs.

    A table is built on first access and does not follow later edits. Several graphs must not share names; the
    main graph and the bodies of a `Model` do not.
    """

    def __init__(self, *graphs: onnx.GraphProto) -> None:
        """Index `graphs`; a body inside one of them is indexed only if it is listed too."""
        self._graphs = graphs

    @classmethod
    def of_model(cls, proto: onnx.ModelProto) -> GraphIndex:
        """Return the index of the main graph of `proto` and of every body."""
        return cls(*list_graphs(proto.graph))

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """All nodes, graph by graph."""
        return [node for graph in self._graphs for node in graph.node]

    @cached_property
    def makers(self) -> dict[str, onnx.NodeProto]:
        """Tensor -> the node that computes it."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        """Tensor -> the nodes that read it, once for each input slot."""
        found: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in filter(None, node.input):
                found[name].append(node)
        return dict(found)

    @cached_property
    def constants(self) -> dict[str, onnx.TensorProto]:
        """Name -> initializer."""
        return {tensor.name: tensor for graph in self._graphs for tensor in graph.initializer}

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant; None for another tensor and for an empty name."""
        tensor = self.constants.get(name)
        return None if tensor is None else tensor_array(tensor)

    def number(self, name: str) -> float | None:
        """Return the value of a constant of one number; None for another tensor."""
        values = self.array(name)
        return None if values is None or values.size != 1 else float(values.item())

    def axes(self, node: onnx.NodeProto) -> list[int]:
        """Return the axes of a reduction, from an attribute or a constant; none for all, or computed ones."""
        given = self.array(input_name(node, 1))
        return list(attributes_of(node).get("axes", ()) if given is None else given.reshape(-1).tolist())

    @cached_property
    def bounds(self) -> dict[str, Bounds]:
        """Computed tensor -> its bounds that follow from operators and constants; else `UNKNOWN`."""
        found: dict[str, Bounds] = {"": UNKNOWN}

        def know(name: str) -> Bounds:
            values = None if name in found else self._known(name)
            if values is not None and values.dtype.kind == "f" and 0 < values.size <= _MOST_BOUNDED:
                found[name] = float(values.min()), float(values.max())
            return found.get(name, UNKNOWN)

        for node in self.nodes:
            ends = bounds_of(node, map(know, node.input))
            for name in filter(None, node.output):
                found[name] = ends if self._known(name) is None else know(name)
        return found

    def _known(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant that is small enough to seek its ends; a large one is not read."""
        tensor = self.constants.get(name)
        return None if tensor is None or prod(tensor.dims) > _MOST_BOUNDED else tensor_array(tensor)

    @cached_property
    def stored(self) -> dict[str, onnx.TensorProto]:
        """Name -> initializer, or the tensor of a Constant node."""
        made = {node.output[0]: constant_value(node) for node in self.nodes if node.op_type == "Constant"}
        return self.constants | {name: tensor for name, tensor in made.items() if tensor is not None}

    @cached_property
    def values(self) -> dict[str, onnx.ValueInfoProto]:
        """Tensor -> its declared type and shape: of inputs, outputs and inferred tensors."""
        # Inferred types come last: an output that was added to be fetched declares no type.
        return {v.name: v for g in self._graphs for v in (*g.input, *g.output, *g.value_info)}

    @cached_property
    def types(self) -> dict[str, int]:
        """Tensor -> its ONNX element type, 0 for values that are not tensors and for unknown types."""
        known = {name: value.type.tensor_type.elem_type for name, value in self.values.items()}
        return known | {name: tensor.data_type for name, tensor in self.constants.items()}

    @cached_property
    def outputs(self) -> set[str]:
        """Outputs of the graphs."""
        return {value.name for graph in self._graphs for value in graph.output}

    @cached_property
    def captured(self) -> set[str]:
        """Names that the bodies inside read or return; some may belong to the bodies themselves."""
        inside = [body for node in self.nodes for body in bodies(node)]
        return set().union(*(GraphIndex(*list_graphs(body)).used for body in inside))

    @cached_property
    def used(self) -> set[str]:
        """Names that nodes read, and the outputs."""
        return {name for node in self.nodes for name in node.input if name} | self.outputs

    @cached_property
    def enclosing(self) -> dict[str, str]:
        """Tensor of a body -> a description of the body: `then_branch of If 'n'`."""
        found: dict[str, str] = {}
        for node in self.nodes:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    where = f"{attribute.name} of {node.op_type} {node.name!r}"
                    given = [value.name for value in attribute.g.input]
                    given += [name for inner in attribute.g.node for name in inner.output]
                    found |= dict.fromkeys(given, where)
        return found

    @cached_property
    def names(self) -> Names:
        """All names of nodes and tensors, including bodies."""
        taken = Names((*self.values, *self.constants))
        for node in (node for graph in self._graphs for node in list_nodes(graph)):
            taken.update((node.name, *node.input, *node.output))
        return taken

    def nodes_behind(self, tensors: Iterable[str], stops: Collection[str] = ()) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that read tensors, directly or over others; behind those in `stops` none."""
        waiting, seen = list(tensors), set(stops)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                for node in self.readers.get(name, ()):
                    yield node
                    waiting += node.output

    def origin(self, tensor: str, moves: Collection[str]) -> str:
        """Return the tensor that one comes from by operators in `moves`, over their first inputs."""
        while (maker := self.makers.get(tensor)) is not None and maker.op_type in moves:
            tensor = maker.input[0]
        return tensor

    def shape(self, tensor: str) -> Shape | None:
        """Return the shape of `tensor`, None for open dimensions; None when its rank is unknown."""
        if tensor in self.constants:
            return tuple(self.constants[tensor].dims)
        value = self.values.get(tensor)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)

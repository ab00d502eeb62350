"""Inputs and outputs of a model by name, and the boundaries of quantized kernels."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import onnx

from onnxfq.errors import ModelError
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.ops import ONNX_QUANTIZERS, SIZED_BY_VALUES

TYPE_ATTRIBUTES = frozenset({"to", "output_dtype", "dtype"})
"""Attributes that name an element type."""


def output_names(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the outputs in order."""
    return tuple(value.name for value in proto.graph.output)


def computed_tensors(proto: onnx.ModelProto) -> set[str]:
    """Return the tensors that nodes of the main graph compute."""
    return set(GraphIndex(proto.graph).makers)


def element_types(proto: onnx.ModelProto) -> set[int]:
    """Return the element types of all tensors and casts, in bodies too."""
    kinds: set[int] = set()
    for graph in list_graphs(proto.graph):
        kinds |= {tensor.data_type for tensor in graph.initializer}
        kinds |= {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    for attribute in (a for node in list_nodes(proto.graph) for a in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            kinds.add(attribute.t.data_type)
        elif attribute.name in TYPE_ATTRIBUTES:
            kinds.add(attribute.i)
    return kinds


def with_inputs_of(proto: onnx.ModelProto, like: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return `proto` with the inputs of `like`: tools take out inputs that no node reads.

    Raises ModelError for an input that nodes of the model `name` read and `like` does not have.
    """
    index, defaults = GraphIndex.of_model(proto), GraphIndex(like.graph).constants
    given = [value for value in like.graph.input if value.name not in defaults]
    names = [value.name for value in given]
    lacks = {value.name for value in proto.graph.input}.difference(names, index.constants)
    if read := sorted(lacks & index.used):
        have = ", ".join(names) or "none"
        raise ModelError(
            f"{name} reads input {read[0]!r}, and the other model has {have}; give models of one network"
        )
    more = [value for value in given if not {value.name} & (index.values.keys() | index.constants.keys())]
    if not lacks and not more:
        return proto
    made = deepcopy(proto)
    left = [value for value in made.graph.input if value.name not in lacks]
    del made.graph.input[:]
    made.graph.input.extend([*left, *more])
    return made


def with_outputs(proto: onnx.ModelProto, tensors: Iterable[str]) -> onnx.ModelProto:
    """Return `proto` with inner tensors as additional outputs."""
    have = set(output_names(proto))
    extra = [name for name in tensors if name not in have]
    if not extra:
        return proto
    copy = deepcopy(proto)
    copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in extra)
    return copy


def boundaries(proto: onnx.ModelProto) -> list[str]:
    """Return the tensors of the main graph that quantizers read, and its outputs.

    Every runtime has these tensors, because a fused kernel computes up to them; it may lack tensors in
    between.
    """
    wanted = set(output_names(proto))
    wanted |= {node.input[0] for node in proto.graph.node if node.op_type in ONNX_QUANTIZERS}
    return [name for node in proto.graph.node for name in node.output if name in wanted]


def sized_by_values(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors of the main graph whose sizes depend on which values are selected."""
    sized: set[str] = set()
    for node in graph.node:
        if node.op_type in SIZED_BY_VALUES or sized.intersection(node.input):
            sized.update(node.output)
    return sized

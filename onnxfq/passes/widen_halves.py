"""float16 and bfloat16 models in float32, for runtimes whose integer kernels take and give float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.tensor import list_tensors, tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.signature import TYPE_ATTRIBUTES
from onnxfq.graph.walk import rename_tensors
from onnxfq.numerics.float_types import FLOAT_CODES, FLOATS
from onnxfq.runtime.float32_emulation import HALVES, holds_types

_FLOAT = FLOATS["float32"].onnx_type


def widen_halves(model: Model) -> Model:
    """Return `model` with all 16-bit floats inside as float32; itself without any.

    Constants keep their values, and results are no longer rounded to 16 bits. Inputs and outputs keep names
    and types, with a Cast inside. A model that takes or gives sequences stays as it is.
    """
    ends = (*model.proto.graph.input, *model.proto.graph.output)
    if not holds_types(model.proto, HALVES) or any(value.type.HasField("sequence_type") for value in ends):
        return model
    proto = with_shapes(model.proto)
    _drop_casts(proto)
    for tensor in list_tensors(proto):
        if tensor.data_type in HALVES:
            tensor.CopyFrom(make_tensor(tensor.name, tensor_array(tensor).astype(np.float32)))
    for attribute in (one for node in list_nodes(proto.graph) for one in node.attribute):
        if attribute.name in TYPE_ATTRIBUTES and attribute.i in HALVES:
            attribute.i = _FLOAT
    cast = _cast_ends(proto)
    for graph in list_graphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in HALVES and value.name not in cast:
                value.type.tensor_type.elem_type = _FLOAT
        others = [value for value in graph.value_info if not value.type.HasField("tensor_type")]
        for value in others:  # a sequence has the type of its elements, which ONNX infers
            graph.value_info.remove(value)
    note = "16-bit floats are float32 inside, which integer kernels take and give"
    return replace(model, proto=proto, notes=(*model.notes, note))


def _drop_casts(proto: onnx.ModelProto) -> None:
    """Make Identities of the Casts between float types, in place."""
    types = GraphIndex.of_model(proto).types
    for node in list_nodes(proto.graph):
        kinds = {types.get(name, 0) for name in (*node.input, *node.output)}
        if node.op_type == "Cast" and kinds <= FLOAT_CODES:
            node.op_type = "Identity"
            del node.attribute[:]


def _cast_ends(proto: onnx.ModelProto) -> set[str]:
    """Put a Cast behind each input of 16 bits and before each such output, in place; return their names."""
    graph, names = proto.graph, GraphIndex.of_model(proto).names
    given, made = (
        {value.name: value.type.tensor_type.elem_type for value in values}
        for values in (graph.input, graph.output)
    )
    ends = [name for name, kind in (given | made).items() if kind in HALVES]
    inner = {name: names.claim(f"{name}/float32") for name in ends}
    rename_tensors(list_nodes(graph), inner)
    for named in (*graph.initializer, *(value for body in list_graphs(graph)[1:] for value in body.output)):
        named.name = inner.get(named.name, named.name)
    for name in ends:
        if name in given:
            first = helper.make_node("Cast", [name], [inner[name]], inner[name], to=_FLOAT)
            graph.node.insert(0, first)
        else:
            graph.node.append(helper.make_node("Cast", [inner[name]], [name], inner[name], to=made[name]))
    return {*ends}

"""Float inputs and outputs in place of quantized caches: a model then takes the feeds of its float form."""

from __future__ import annotations

from copy import deepcopy

import onnx
from onnx import TensorProto, parser

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import replace_nodes
from onnxfq.graph.walk import rename_tensors
from onnxfq.placement.caches import ATTENTION, PASTS, SCALES

_STORE_INT8 = """g (float[n] real, float[n] scale) => (int8[n] stored) <
    float low = {-128}, float high = {127}>
{ steps = Div (real, scale) whole = Round (steps) held = Clip (whole, low, high)
  stored = Cast <to = 3> (held) }"""

_LOAD_INT8 = """g (int8[n] stored, float[n] scale) => (float[n] real)
{ whole = Cast <to = 1> (stored) real = Mul (whole, scale) }"""

_STORE_INT4 = """g (float[n] real, float[n] scale) => (uint8[n] stored) <
    float low = {-8}, float high = {7}, float half = {8}, float base = {16}, int64[1] zero = {0},
    int64[1] one = {1}, int64[1] two = {2}, int64[1] axis = {3}, int64[1] end = {9223372036854775807}>
{ steps = Div (real, scale) whole = Round (steps) held = Clip (whole, low, high) shifted = Add (held, half)
  even = Slice (shifted, zero, end, axis, two) odd = Slice (shifted, one, end, axis, two)
  raised = Mul (odd, base) byte = Add (even, raised) stored = Cast <to = 2> (byte) }"""

_LOAD_INT4 = """g (uint8[n] stored, float[n] scale) => (float[n] real) <
    float half = {8}, float base = {16}, int64[1] axis = {4}, int64[4] shape = {0, 0, 0, -1}>
{ byte = Cast <to = 1> (stored) quotient = Div (byte, base) odd = Floor (quotient) raised = Mul (odd, base)
  even = Sub (byte, raised) left = Unsqueeze (even, axis) right = Unsqueeze (odd, axis)
  both = Concat <axis = 4> (left, right) flat = Reshape (both, shape)
  whole = Sub (flat, half) real = Mul (whole, scale) }"""

_FORMS = {TensorProto.INT8: (_STORE_INT8, _LOAD_INT8), TensorProto.UINT8: (_STORE_INT4, _LOAD_INT4)}
"""Storing and reading of a cache of GroupQueryAttention by the type of its elements."""

_STORED = "/stored"


def with_float_caches(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` with float inputs and outputs for the caches that it stores; itself without any.

    A stored number that is read back and stored again stays what it is.
    """
    index = GraphIndex.of_model(proto)
    caches = {**_inside_attention(index), **_between_pairs(proto, index)}
    if not caches:
        return proto
    made = deepcopy(proto)
    graph, names = made.graph, {name: name + _STORED for pair in caches for name in pair}
    rename_tensors(graph.node, names)
    stores, loads = zip(*caches.values(), strict=True)
    nodes = [node for part in stores for node in part.node]
    nodes += [*graph.node, *(node for part in loads for node in part.node)]
    replace_nodes(graph, nodes)
    graph.initializer.extend(tensor for part in (*stores, *loads) for tensor in part.initializer)
    for value in (*graph.input, *graph.output):
        if value.name in names:
            stored = graph.value_info.add()  # ONNX Runtime infers the length of the past for the present
            stored.CopyFrom(value)
            stored.name = names[value.name]
            kind = value.type.tensor_type
            if kind.elem_type == TensorProto.UINT8 and kind.shape.dim[-1].HasField("dim_value"):
                kind.shape.dim[-1].dim_value *= 2
            kind.elem_type = TensorProto.FLOAT
    return made


_Pair = tuple[str, str]
"""Names of a cache as input and as output of the model."""

_Parts = tuple[onnx.GraphProto, onnx.GraphProto]
"""Nodes that store the float input, and nodes that read the stored output."""


def _inside_attention(index: GraphIndex) -> dict[_Pair, _Parts]:
    parts = {}
    for node in index.nodes:
        for slot, past in PASTS.items() if node.op_type == ATTENTION else ():
            form = _FORMS.get(index.types.get(node.input[past], 0))
            if form is not None and len(node.input) > SCALES[slot]:
                ends, scale = (node.input[past], node.output[slot]), node.input[SCALES[slot]]
                texts = zip(form, ends, strict=True)
                parts[ends] = tuple(_instantiate(text, name, scale) for text, name in texts)
    return parts


def _instantiate(text: str, name: str, scale: str) -> onnx.GraphProto:
    """Return the graph of `text` for the cache `name`."""
    graph = parser.parse_graph(text)
    names = {"real": name, "stored": name + _STORED, "scale": scale}
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(one, f"{name}/{one}") for one in tensors]
    for tensor in graph.initializer:
        tensor.name = f"{name}/{tensor.name}"
    return graph


def _between_pairs(proto: onnx.ModelProto, index: GraphIndex) -> dict[_Pair, _Parts]:
    parts = {}
    outputs = {value.name for value in proto.graph.output}
    for node in index.nodes:
        reader = index.makers.get(node.input[0]) if node.op_type == "Concat" else None
        if reader is None or reader.op_type != "DequantizeLinear" or reader.input[0] in index.makers:
            continue
        for writer in index.readers.get(node.output[0], ()):
            if writer.op_type == "QuantizeLinear" and writer.output[0] in outputs:
                past, present = reader.input[0], writer.output[0]
                parts[past, present] = (
                    _copy(writer, past, past + _STORED),
                    _copy(reader, present + _STORED, present),
                )
    return parts


def _copy(node: onnx.NodeProto, source: str, target: str) -> onnx.GraphProto:
    graph = onnx.GraphProto(node=[node])
    graph.node[0].name = f"{target}/cache"
    graph.node[0].input[0], graph.node[0].output[0] = source, target
    return graph

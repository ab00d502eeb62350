"""Float32 emulation of 16-bit models with one rounding per operator.

ONNX Runtime's CPU provider has few bfloat16 kernels. It computes float16 in float32 too, but drops some
roundings between operators, including the rounding of DequantizeLinear: a Q/DQ model and its fake-quant twin
then differ. Here the inputs of every operator are cast to float32 and its results cast back. bfloat16 inputs
and outputs of the model become float32, because NumPy has no bfloat16; inputs are rounded first.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes, replace_nodes
from onnxfq.graph.names import Names
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.graph.signature import element_types
from onnxfq.graph.walk import rename_tensors
from onnxfq.numerics.float_types import HALF_TYPES

BFLOAT16 = frozenset({HALF_TYPES["bf16"].onnx_type})
HALVES = frozenset(half.onnx_type for half in HALF_TYPES.values())

_HALF = TensorProto.BFLOAT16
# Operators with kernels for every type, or with types in attributes.
_ANY_TYPE = frozenset({"Cast", "Constant", "If", "Loop", "Scan"})


def widen_model(proto: onnx.ModelProto, halves: frozenset[int] = BFLOAT16) -> onnx.ModelProto:
    """Return `proto` itself if it has none of the types `halves`, otherwise an emulated copy."""
    if not holds_types(proto, halves):
        return proto
    widened = with_shapes(proto)
    index = GraphIndex.of_model(widened)
    taken, types = index.names, _types(index)
    _own_ends(widened, taken, types)
    # Bodies first: their nodes are copied with the enclosing node.
    for graph in reversed(list_graphs(widened.graph)):
        replace_nodes(graph, [n for node in graph.node for n in _with_casts(node, taken, types, halves)])
        # Renamed tensors now have the types of the casts, and ONNX Runtime infers them itself.
        del graph.value_info[:]
    return widened


def holds_types(proto: onnx.ModelProto, halves: frozenset[int]) -> bool:
    """Tell whether a tensor or a Cast of `proto` has one of the element types `halves`."""
    return not halves.isdisjoint(element_types(proto))


def _types(index: GraphIndex) -> dict[str, int]:
    """Return the known element types by tensor, including FakeQuantize, which ONNX cannot infer."""
    known = dict(index.types)
    for node in index.nodes:
        if node.domain == ONNXFQ_DOMAIN and node.output[0] not in known:
            known[node.output[0]] = known.get(node.input[0], 0)
    return known


def _own_ends(proto: onnx.ModelProto, taken: Names, types: dict[str, int]) -> None:
    """Make bfloat16 inputs and outputs of the model float32, with a Cast inside."""
    first: list[onnx.NodeProto] = []
    last: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    sides = (proto.graph.input, first, _HALF), (proto.graph.output, last, TensorProto.FLOAT)
    for values, casts, to in sides:
        for value in values:
            # An inner tensor that is fetched declares no type.
            if (value.type.tensor_type.elem_type or types.get(value.name)) != _HALF:
                continue
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            if value.name in renamed:  # an input that is an output, or an output that is listed twice
                continue
            inner = renamed[value.name] = taken.claim(f"{value.name}/bfloat16")
            types[inner], types[value.name] = _HALF, TensorProto.FLOAT
            ends = (value.name, inner) if to == _HALF else (inner, value.name)
            casts.append(helper.make_node("Cast", ends[:1], ends[1:], to=to))
    rename_tensors(list_nodes(proto.graph), renamed)
    for tensor in proto.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    proto.graph.node.extend(last)
    for node in reversed(first):
        proto.graph.node.insert(0, node)


def _with_casts(
    node: onnx.NodeProto, taken: Names, types: dict[str, int], halves: frozenset[int]
) -> Iterator[onnx.NodeProto]:
    if node.domain == ONNXFQ_DOMAIN or node.op_type in _ANY_TYPE:
        yield node
        return
    for slot, name in enumerate(node.input):
        if types.get(name) in halves:
            wide = taken.claim(f"{name}/float32")
            yield helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT)
            node.input[slot] = wide
    narrow = []
    for slot, name in enumerate(node.output):
        if types.get(name) in halves:
            wide = taken.claim(f"{name}/float32")
            narrow.append(helper.make_node("Cast", [wide], [name], to=types[name]))
            node.output[slot] = wide
    yield node
    yield from narrow

"""Pairs on both sides of a body: ONNX Runtime fuses an operator with the pairs of its own graph alone.

A pair stands with the reader of a tensor. The maker of the tensor in another graph gets a second pair of the
same numbers. It changes no value, because the first pair would put them on the same grid.
"""

from __future__ import annotations

import onnx

from onnxfq.graph.body_reads import insert_pair
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, list_graphs, list_nodes
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.graph.walk import rename_tensors

CLIPPING = frozenset({"Clip", "Relu"})
"""Operators that vanish in front of a pair whose range does their work."""


def pair_bodies(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Pair, in place, what only pairs of other graphs read, and what branches of an If return to pairs."""
    graphs = list_graphs(proto.graph)
    if len(graphs) == 1:
        return proto
    whole = GraphIndex.of_model(proto)
    for graph in graphs:  # outer ones first: a branch may end in another If
        made = GraphIndex(graph).makers.keys()
        for node in list(graph.node):
            for place, name in enumerate(node.output if node.op_type != "DequantizeLinear" else ()):
                reader = _find_reader(name, whole)
                if reader is None:
                    continue
                if node.op_type == "If":
                    for branch in bodies(node):
                        _pair_end(branch, place, reader, whole)
                elif any(one.output[0] not in made for one in whole.readers[name]):
                    _share_pair(graph, node, whole.readers[name], whole)
                else:
                    continue
                whole = GraphIndex.of_model(proto)
    return proto


def _share_pair(
    graph: onnx.GraphProto, node: onnx.NodeProto, readers: list[onnx.NodeProto], whole: GraphIndex
) -> None:
    """Let the pairs of other graphs read the pair of this one, so that one pair alone reads the result."""
    own = next((one for one in readers if one in graph.node), None)
    if own is None:
        name = readers[0].input[0]
        values = insert_pair(graph, list(graph.node).index(node) + 1, name, name, readers[0], whole.names)
    else:
        values = whole.readers[own.output[0]][0].output[0]
    for one in readers:
        if one is not own:
            one.input[0] = values


def _find_reader(name: str, whole: GraphIndex) -> onnx.NodeProto | None:
    """Return one of the pairs that alone read a tensor, all with the same numbers; None for others."""
    readers = whole.readers.get(name, [])
    same = len({(one.op_type, *one.input[1:], str(one.attribute)) for one in readers}) == 1
    paired = same and readers[0].op_type == "QuantizeLinear" and name not in whole.outputs
    return readers[0] if paired else None


def _pair_end(branch: onnx.GraphProto, place: int, reader: onnx.NodeProto, whole: GraphIndex) -> None:
    """Let a branch return the numbers that `reader` rounds to, if the branch computes them in float."""
    name = branch.output[place].name
    made = GraphIndex(branch).makers
    maker = made.get(name)
    if maker is not None and maker.op_type != "DequantizeLinear":
        zero = whole.array(reader.input[2]) if len(reader.input) > 2 else None
        if maker.op_type in CLIPPING and zero is not None and zero.any() and maker.input[0] in made:
            # Negative numbers of another branch keep a Relu: a pair in front of it changes no number behind.
            given, at = maker.input[0], list(branch.node).index(maker)
            if len(whole.readers[given]) == 1 and made[given].op_type not in QDQ_OPS:
                maker.input[0] = insert_pair(branch, at, given, given, reader, whole.names)
        real = whole.names.claim(f"{name}/float")
        rename_tensors(list_nodes(branch), {name: real})
        insert_pair(branch, len(branch.node), real, name, reader, whole.names)
        last = branch.node[-1]
        last.output[0] = name

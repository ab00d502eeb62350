"""Pairs in front of a move of data that a body reads: ONNX Runtime ends the process while it loads them.

Its QDQPropagationTransformer puts a pair behind each move, and takes a read from inside a body for an input
of the node that holds the body: 1.20.1, 1.22.1 and 1.31.1 do. `tests/graph/test_body_reads.py` tells when the
rule can go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

import onnx
from onnx import helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.names import Names
from onnxfq.graph.walk import bodies, list_graphs, list_nodes, rename_tensors

PROPAGATED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators over which ONNX Runtime moves pairs with one scale."""


class MovedRead(NamedTuple):
    """A tensor that a body reads, and the pair in front of the moves that make it.

    Attributes:
        graph: of the pair and the moves.
        quantize: the QuantizeLinear.
        move: the last move.
    """

    graph: onnx.GraphProto
    quantize: onnx.NodeProto
    move: onnx.NodeProto


def find_moved_reads(proto: onnx.ModelProto) -> list[MovedRead]:
    """Return the reads on which ONNX Runtime ends the process, graph by graph."""
    graphs = list_graphs(proto.graph)
    if len(graphs) == 1:
        return []
    constants = GraphIndex(*graphs).stored
    single = {name for name, tensor in constants.items() if math.prod(tensor.dims) == 1}
    return [found for graph in graphs for found in _find_in(graph, single)]


def _find_in(graph: onnx.GraphProto, single: set[str]) -> Iterator[MovedRead]:
    index = GraphIndex(graph)
    for dequantize in index.nodes:
        if dequantize.op_type != "DequantizeLinear" or dequantize.input[1] not in single:
            continue
        quantize = index.makers.get(dequantize.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            continue
        waiting = [dequantize.output[0]]
        for name in waiting:
            for node in index.readers.get(name, ()):
                if node.op_type in PROPAGATED and node.input[0] == name:
                    waiting.append(node.output[0])
                    if node.output[0] in index.captured:
                        yield MovedRead(graph, quantize, node)


def pair_moved_reads(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto`, a new one if needed, in which such bodies read a second pair with the same numbers.

    The values are on the grid of the first pair, with one scale: the second one changes none.
    """
    if not find_moved_reads(proto):
        return proto
    paired = deepcopy(proto)
    names = GraphIndex.of_model(paired).names
    for graph, quantize, move in find_moved_reads(paired):
        moved = move.output[0]
        values = insert_pair(graph, list(graph.node).index(move) + 1, moved, moved, quantize, names)
        for owner in graph.node:
            for body in bodies(owner):
                rename_tensors(list_nodes(body), {moved: values}, made=False)
                for output in (one for inner in list_graphs(body) for one in inner.output):
                    output.name = values if output.name == moved else output.name
    return paired


def insert_pair(
    graph: onnx.GraphProto, at: int, given: str, name: str, like: onnx.NodeProto, names: Names
) -> str:
    """Insert a pair of `given` with the numbers of `like`, named for `name`; return what it gives."""
    integers, values = (names.claim(f"{name}/{end}") for end in ("q", "dq"))
    quantize = helper.make_node("QuantizeLinear", [given, *like.input[1:]], [integers], integers)
    read = helper.make_node("DequantizeLinear", [integers, *like.input[1:]], [values], values)
    quantize.attribute.extend(like.attribute)
    read.attribute.extend(one for one in like.attribute if one.name in ("axis", "block_size"))
    graph.node.insert(at, quantize)
    graph.node.insert(at + 1, read)
    return values

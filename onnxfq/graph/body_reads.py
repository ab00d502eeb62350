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
from onnxfq.graph.names import pick_name
from onnxfq.graph.walk import bodies, list_graphs, list_nodes, rename_tensors

PROPAGATED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators over which ONNX Runtime moves pairs with one scale."""


class MovedRead(NamedTuple):
    """A tensor that a body reads, and the pair in front of the moves that make it.

    Attributes:
        graph: of the pair and the moves.
        quantize: the QuantizeLinear.
        dequantize: the DequantizeLinear.
        move: the last move.
    """

    graph: onnx.GraphProto
    quantize: onnx.NodeProto
    dequantize: onnx.NodeProto
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
                        yield MovedRead(graph, quantize, dequantize, node)


def pair_moved_reads(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto`, a new one if needed, in which such bodies read a second pair with the same numbers.

    The values are on the grid of the first pair, with one scale: the second one changes none.
    """
    if not find_moved_reads(proto):
        return proto
    paired = deepcopy(proto)
    names = GraphIndex.of_model(paired).names
    for graph, quantize, dequantize, move in find_moved_reads(paired):
        moved = move.output[0]
        integers, values = (pick_name(f"{moved}/{end}", names) for end in ("q", "dq"))
        names.update((integers, values))
        nodes = [
            helper.make_node(pattern.op_type, [given, *pattern.input[1:]], [made], made)
            for pattern, given, made in ((quantize, moved, integers), (dequantize, integers, values))
        ]
        for made, pattern in zip(nodes, (quantize, dequantize), strict=True):
            made.attribute.extend(pattern.attribute)
        for owner in graph.node:
            for body in bodies(owner):
                rename_tensors(list_nodes(body), {moved: values}, made=False)
                for output in (one for inner in list_graphs(body) for one in inner.output):
                    output.name = values if output.name == moved else output.name
        at = list(graph.node).index(move) + 1
        for node in reversed(nodes):
            graph.node.insert(at, node)
    return paired

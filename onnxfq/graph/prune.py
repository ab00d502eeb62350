"""Removal of nodes and constants from an ONNX model, in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import onnx

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import replace_nodes


def leave_out(graph: onnx.GraphProto, replaced: Mapping[str, str]) -> None:
    """Remove the nodes that make the tensors `replaced`; their readers read what these stand for.

    Constants of `graph` that nothing reads any more go too.
    """

    def final(name: str) -> str:
        while name in replaced:
            name = replaced[name]
        return name

    kept = [node for node in graph.node if replaced.keys().isdisjoint(node.output)]
    for node in kept:
        node.input[:] = [final(name) for name in node.input]
    replace_nodes(graph, kept)
    for value in [value for value in graph.value_info if value.name in replaced]:
        graph.value_info.remove(value)
    index = GraphIndex(graph)
    keep_constants(graph, index.used | index.captured)


def remove_unread(
    proto: onnx.ModelProto,
    graphs: Sequence[onnx.GraphProto],
    is_removable: Callable[[onnx.NodeProto], bool] = lambda node: True,
) -> None:
    """Remove nodes of `graphs`, of `proto`, that nothing reads, and constants of the main graph likewise."""
    used: set[str] = set()
    while used != (now := GraphIndex.of_model(proto).used):
        used = now
        for graph in graphs:
            for number in reversed(range(len(graph.node))):  # in place: bodies stay the same objects
                node = graph.node[number]
                if is_removable(node) and used.isdisjoint(node.output):
                    del graph.node[number]
    keep_constants(proto.graph, used)


def keep_constants(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Remove the initializers of `graph` whose names are not in `names`."""
    kept = [tensor for tensor in graph.initializer if tensor.name in names]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)

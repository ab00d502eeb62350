"""The graphs and nodes of a model, bodies included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import onnx
import onnx_graphsurgeon as gs

Graph = TypeVar("Graph")
"""An ONNX graph or a graphsurgeon graph."""


def bodies(node: onnx.NodeProto | gs.Node) -> list[Any]:
    """Return the bodies of `node`, an ONNX or graphsurgeon node, in the order of its attributes."""
    if isinstance(node, gs.Node):
        return [value for value in node.attrs.values() if isinstance(value, gs.Graph)]
    kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return [
        g for a in node.attribute if a.type in kinds for g in (*a.graphs, *([a.g] if a.HasField("g") else []))
    ]


def list_graphs(graph: Graph) -> list[Graph]:
    """Return `graph` and every body below it, outer ones first."""
    found = [graph]
    if isinstance(graph, gs.Graph):
        inner = [node for node in graph.nodes if node.attrs]
    else:
        inner = [node for node in graph.node if node.attribute]  # type: ignore[attr-defined]
    for node in inner:  # every stage asks for all bodies: nodes without attributes have none
        for body in bodies(node):
            found += list_graphs(body)
    return found


def list_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of `graph` and of every body below it; the nodes of a body follow its owner."""
    found = []
    for node in graph.node:
        found.append(node)
        if node.attribute:
            for body in bodies(node):
                found += list_nodes(body)
    return found


def nodes_inside(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes of all bodies of `node`."""
    return [inner for body in bodies(node) for inner in list_nodes(body)]


def count_operators(graph: onnx.GraphProto) -> int:
    """Return how many nodes a run of `graph` computes at most: of the branches of an If the longer one."""
    total = 0
    for node in graph.node:
        inner = [count_operators(body) for body in bodies(node)] if node.attribute else []
        total += (node.op_type != "Constant") + (max(inner) if node.op_type == "If" else sum(inner))
    return total


def rename_tensors(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str], *, made: bool = True) -> None:
    """Give tensors other names where nodes read them, and where nodes make them if `made`."""
    for node in nodes:
        for slots in (node.input, node.output) if made else (node.input,):
            slots[:] = [names.get(name, name) for name in slots]

"""Nodes of domain `onnxfq`: the operators of the custom-op library."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

DOMAIN = "onnxfq"
VERSION = 1


def custom_node(op: str, name: str, **fields: object) -> gs.Node:
    """Make a node of the custom-op library; fields are attrs, inputs, outputs."""
    return gs.Node(op=op, name=name, domain=DOMAIN, **fields)


def import_domain(graph: gs.Graph) -> None:
    """Declare the domain among the operator sets that `graph` uses."""
    opsets = list(graph.import_domains or [])
    if all(o.domain != DOMAIN for o in opsets):
        graph.import_domains = [*opsets, onnx.helper.make_opsetid(DOMAIN, VERSION)]

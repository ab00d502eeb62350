"""Nodes of domains beside ONNX's own: `onnxfq`, the custom-op library, and those of targets."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_graphsurgeon as gs

from onnxfq.numerics.spec import QuantSpec

DOMAIN = "onnxfq"
VERSION = 1


def custom_node(op: str, name: str, domain: str = DOMAIN, **fields: object) -> gs.Node:
    """Make a node of `domain`; fields are attrs, inputs, outputs."""
    return gs.Node(op=op, name=name, domain=domain, **fields)


def block_attributes(spec: QuantSpec) -> dict[str, Any]:
    """Return the granularity of `spec` as the attributes that the operators of `onnxfq` take."""
    return {
        key: list(value) if key == "block_shape" else value
        for key, value in spec.blocks.items()
        if value is not None
    }


def import_domain(graph: gs.Graph, domain: str = DOMAIN) -> None:
    """Declare the domain among the operator sets that `graph` uses."""
    opsets = list(graph.import_domains or [])
    if all(o.domain != domain for o in opsets):
        graph.import_domains = [*opsets, onnx.helper.make_opsetid(domain, VERSION)]

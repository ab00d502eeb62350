"""Nodes of domains beside ONNX's own: `onnxfq`, the custom-op library, and what TensorRT's parser adds."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from onnxfq.graph.ops import ONNXFQ_DOMAIN

VERSION = 1


TENSORRT_DOMAIN = "trt"


def custom_node(op: str, name: str, domain: str = ONNXFQ_DOMAIN, **fields: object) -> gs.Node:
    """Make a node of `domain`; fields are attrs, inputs, outputs."""
    return gs.Node(op=op, name=name, domain=domain, **fields)


def import_domain(graph: gs.Graph, domain: str = ONNXFQ_DOMAIN) -> None:
    """Declare the domain among the operator sets that `graph` uses."""
    opsets = list(graph.import_domains or [])
    if all(o.domain != domain for o in opsets):
        graph.import_domains = [*opsets, onnx.helper.make_opsetid(domain, VERSION)]

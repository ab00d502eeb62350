"""Metadata of nodes: the torch module that torch's exporter notes."""

from __future__ import annotations

import ast

import onnx

from onnxfq.graph.model import list_nodes

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
"""Metadata of a node: list of module paths from the root inwards, and the name of the operation."""


def module_path(node: onnx.NodeProto) -> str:
    """Return the path of the innermost module that computes `node`, such as `encoder.layer.3.fc`.

    It is empty for the root, and for a node without the metadata of torch's exporter.
    """
    text = next((entry.value for entry in node.metadata_props if entry.key == SCOPES_KEY), "[]")
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    inner = scopes[-2:-1] if isinstance(scopes, list) else []
    return inner[0] if inner and isinstance(inner[0], str) else ""


def module_paths(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the path by node name for the nodes that have one, in bodies too."""
    return {node.name: path for node in list_nodes(graph) if (path := module_path(node))}

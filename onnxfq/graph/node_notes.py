"""Notes on nodes: metadata that runtimes ignore and viewers show."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxfq.graph.model import list_nodes

NodeNotes = Mapping[str, Mapping[str, str]]
"""Values by node and key."""


def note_nodes(proto: onnx.ModelProto, notes: NodeNotes) -> None:
    """Add `notes` to the metadata of the nodes of `proto`, in place; nodes that it lacks are left out."""
    for node in list_nodes(proto.graph):
        for key, value in notes.get(node.name, {}).items():
            for entry in [entry for entry in node.metadata_props if entry.key == key]:
                node.metadata_props.remove(entry)
            node.metadata_props.add(key=key, value=value)

"""`name_tensor`: a tensor in words for people, by what makes it where an exporter only numbered it."""

from __future__ import annotations

import re

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_notes import module_path

MOVERS = ("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that only move values or change their type."""

_NUMBERED = re.compile(r"[A-Za-z]*[_:.]*\d+")


def name_tensor(name: str, index: GraphIndex) -> str:
    """Return `'scores'`, or for names such as `val_243` the maker: `Conv of 'head.cls'`, a module or a node.

    An operator that only moves values is none.
    """
    node = index.makers.get(follow_back(name, index))
    if node is None or not _NUMBERED.fullmatch(name):
        return repr(name)
    return f"{node.op_type} of {(module_path(node) or node.name)!r}"


def follow_back(name: str, index: GraphIndex) -> str:
    """Return the tensor whose values `name` has, perhaps at other places."""
    while name in index.makers and index.makers[name].op_type in MOVERS:
        name = index.makers[name].input[0]
    return name

"""`name_tensor`: a tensor in words for people, by the module or the node that makes it."""

from __future__ import annotations

import re

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_notes import module_path

MOVERS = ("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that only move values or change their type."""

_LIGHT = (*MOVERS, "Add", "Div", "HardSigmoid", "LogSoftmax", "Mul", "Sigmoid", "Softmax", "Sub", "Tanh")
"""The same, and operators that scale, shift or squash."""

_NUMBERED = re.compile(r"[A-Za-z]*[_:.]*\d+")


def name_tensor(name: str, index: GraphIndex) -> str:
    """Return a tensor in words: `Conv of 'head.cls'`, the module that makes it, where torch noted one.

    Else it is the name, or `Conv of 'node_7'`, the node behind a name such as `val_243`. Operators that only
    move, scale, shift or squash are passed.
    """
    node = index.makers.get(name)
    while node is not None and not module_path(node) and node.op_type in _LIGHT:
        computed = [one for one in node.input if one in index.makers]
        node = index.makers[computed[0]] if len(computed) == 1 else None
    if node is not None and module_path(node):
        return f"{node.op_type} of {module_path(node)!r}"
    node = index.makers.get(index.origin(name, MOVERS))
    return (
        f"{node.op_type} of {node.name!r}" if node is not None and _NUMBERED.fullmatch(name) else repr(name)
    )

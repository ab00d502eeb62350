"""Outputs that matter: logits in front of a function that saturates."""

from __future__ import annotations

import onnx

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.signature import number_outputs

SATURATING = frozenset(
    {"Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Hardmax", "ArgMax", "TopK", "Tanh"}
)
"""Operators whose outputs hide noise in their input: nearly constant, or a choice among candidates."""

_MOVING = frozenset(
    {"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Dropout"}
)


def find_logits(graph: onnx.GraphProto) -> list[str]:
    """Return the tensors to measure: the outputs of numbers, or what a saturating operator reads for them.

    Operators that only move elements in between are followed. Each tensor is named once.
    """
    makers = GraphIndex(graph).makers
    found: dict[str, None] = {}
    for output in (value.name for value in graph.output):
        name = output
        while (node := makers.get(name)) is not None and node.domain in STANDARD_DOMAINS:
            if node.op_type in SATURATING:
                output = node.input[0]
            elif node.op_type not in _MOVING:
                break
            name = node.input[0]
        found[output] = None
    return list(found)


def measured_outputs(proto: onnx.ModelProto) -> list[str]:
    """Return the logits of `proto`, and its outputs of numbers that have none."""
    numbers = set(number_outputs(proto))
    outputs = {value.name for value in proto.graph.output}
    return [name for name in find_logits(proto.graph) if name in numbers or name not in outputs]

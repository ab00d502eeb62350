"""Tensors that a file does not name and yet settles: those made of the numbers of one that it names."""

from __future__ import annotations

from onnxfq.graph.model import Model, all_graphs
from onnxfq.graph.ops import DATA_MOVEMENT, STANDARD_DOMAINS
from onnxfq.interchange.external import Given


def moved_tensors(given: Given, model: Model) -> dict[str, str]:
    """Return tensor -> the one that the file names and whose numbers it has.

    AIMET writes no entry for what a Reshape gives. The source has one scale, for moving numbers moves their
    channels, or is left in float.
    """
    named = {name for name, tensor in given.tensors.items() if tensor.per_tensor} | set(given.in_float)
    passed_over = set(given.tensors) | set(given.unusable)
    moved: dict[str, str] = {}
    for graph in all_graphs(model.proto.graph):
        for node in graph.node:  # in the order of computation, so that chains are followed
            if node.op_type not in DATA_MOVEMENT or node.domain not in STANDARD_DOMAINS or not node.input:
                continue
            source = moved.get(node.input[0], node.input[0])
            if source in named:
                new = (name for name in node.output if name and name not in named | passed_over)
                moved |= dict.fromkeys(new, source)
    return moved

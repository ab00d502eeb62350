"""Copies of shared constants for nodes that need a single reader."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.operators import BIAS_SLOT, BIASED


def separate_constants(model: Model, *slots: Callable[[gs.Node], int | None]) -> Model:
    """Return `model` with a copy of each constant that several nodes read; the model itself without any.

    Args:
        model: the model.
        slots: each returns the input of a node that needs a constant that nothing else reads; None for none.
    """
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for node in nodes_by_graph(graph):
        for slot in {found for slot_of in slots if (found := slot_of(node)) is not None}:
            constant = node.inputs[slot] if len(node.inputs) > slot else None
            if isinstance(constant, gs.Constant) and len(constant.outputs) > 1:
                node.inputs[slot] = editor.constant(f"{constant.name}/{node.name}", constant_array(constant))
                count += 1
    return model.with_graph(graph) if count else model


def find_bias(node: gs.Node) -> int | None:
    """Return the slot of a bias, which has the scale of its layer's products, or is added in its kernel."""
    return BIAS_SLOT if node.op in BIASED else None

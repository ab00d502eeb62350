"""Transposes of constants are computed: they would stand between a weight and its product."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, list_graphs
from onnxfq.graph.ops import STANDARD_DOMAINS


def store_turned(model: Model, readers: int = 1) -> Model:
    """Return `model` with the result of each Transpose of a constant stored; itself without any.

    Args:
        model: of any source.
        readers: how many a result has at least.
    """
    if not any(node.op_type == "Transpose" for node in model.proto.graph.node):
        return model
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for scope in list_graphs(graph):
        turns = [n for n in scope.nodes if n.op == "Transpose" and n.domain in STANDARD_DOMAINS]
        for turn in turns:
            result = turn.outputs[0]
            is_output = any(result is one for one in scope.outputs)
            if not isinstance(turn.inputs[0], gs.Constant) or is_output or len(result.outputs) < readers:
                continue
            values = np.ascontiguousarray(
                np.transpose(constant_array(turn.inputs[0]), turn.attrs.get("perm"))
            )
            stored = editor.constant(f"{result.name}/stored", values)
            for reader in list(result.outputs):
                reader.inputs = [stored if tensor is result else tensor for tensor in reader.inputs]
            scope.nodes.remove(turn)
            count += 1
    return model.with_graph(graph) if count else model

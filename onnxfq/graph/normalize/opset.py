"""Opset upgrade of ai.onnx, no further than required, and edits of a model at an opset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx
import onnx_graphsurgeon as gs
from onnx import version_converter

from onnxfq.errors import ModelError
from onnxfq.graph.checker import check_model, hide_runtime_operators, show_runtime_operators
from onnxfq.graph.external.weightless import change_without_weights
from onnxfq.graph.model import Model, default_opset, list_nodes, restore_annotations
from onnxfq.graph.normalize import steps as normalize
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.support.records import join_lines

# Lowest IR version that allows an opset, from ONNX's versioning table.
_IR_OF_OPSET = {13: 7, 15: 8, 19: 9, 21: 10, 23: 11, 24: 12, 25: 13, 28: 14}


def edit_model(model: Model, edit: Callable[[gs.Graph, int], bool], opset: int = 1) -> Model:
    """Return an edited copy of `model`; itself if nothing changes.

    Args:
        model: the model.
        edit: edits a graph in place, at an ai.onnx opset; returns whether anything changed.
        opset: the lowest one that has the operators that `edit` inserts.
    """
    proto, note = raise_opset(model.proto, opset, model.source)
    raised = replace(model, proto=proto, notes=(*model.notes, *([note] if note else [])))
    graph = raised.graph()
    return raised.with_graph(graph) if edit(graph, raised.opset) else model


def raise_opset(proto: onnx.ModelProto, opset: int, source: str) -> tuple[onnx.ModelProto, str]:
    """Return (`proto` at `opset` or above, note). Raises ModelError when ONNX's converter fails.

    Shapes are inferred first: the converter rewrites Softmax by its input's rank and writes an invalid
    Reshape for an unknown rank (onnx 1.23.2).
    """
    have = default_opset(proto)
    if have >= opset:
        return proto, ""
    shaped = with_shapes(proto)
    try:
        raised = change_without_weights(shaped, lambda bare: _convert_opset(bare, opset))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as fault:
        raise ModelError(
            f"{source}: opset {have} must be raised to {opset} and onnx's converter refused "
            f"({_explain(proto, have, join_lines(fault))[:160]}); export the model at opset {opset} or above"
        ) from None
    raised.ir_version = max(proto.ir_version, lowest_ir(opset))
    # The converter adds Constant nodes and nodes without names.
    normalize.constants_to_initializers(raised)
    normalize.name_nodes(raised)
    restore_annotations(raised, proto)
    return raised, f"opset raised from {have} to {opset}"


def _explain(proto: onnx.ModelProto, opset: int, fault: str) -> str:
    """Return the converter's message; onnx 1.23.2 leaves the operator out of one of them."""
    if "%" not in fault:
        return fault
    unknown = (
        node
        for node in list_nodes(proto.graph)
        if node.domain in STANDARD_DOMAINS and not onnx.defs.has(node.op_type, max_inclusive_version=opset)
    )
    node = next(unknown, None)
    return f"{node.op_type} {node.name!r} is no operator of ONNX" if node is not None else fault.split("%")[0]


def lowest_ir(opset: int) -> int:
    """Return the lowest IR version that allows the ai.onnx `opset`."""
    return max((ir for version, ir in _IR_OF_OPSET.items() if version <= opset), default=3)


def _convert_opset(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    hide_runtime_operators(proto)
    raised = version_converter.convert_version(proto, opset)
    show_runtime_operators(raised)
    check_model(raised)
    return raised

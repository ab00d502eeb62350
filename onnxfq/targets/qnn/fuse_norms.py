"""Normalizations written as single operators become LayerNormalization, which the HTP has.

As single operators they cannot be quantized: a variance that 8 bits round to 0 divides by 0. ONNX Runtime's
preprocessing for QNN fuses them too, and this is its function.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

from onnxfq.graph.model import Model, restore_annotations
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.opset import raise_opset
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.runtime.norm_fusion import fuse_layer_norms

_OPSET = 17
"""First opset with LayerNormalization."""


def fuse_norms(model: Model) -> Model:
    """Return `model` with LayerNormalization in place of its parts; the model itself if it has none.

    Only means along the last axis are fused, with a scale and a bias of rank 1 (ONNX, LayerNormalization).
    """
    kinds = {node.op_type for node in model.proto.graph.node}
    if not kinds >= {"Div", "ReduceMean", "Sqrt", "Sub"} or not all(_find_last_axes(model)):
        return model
    raised, note = raise_opset(model.proto, _OPSET, model.source)
    proto = deepcopy(raised)
    before = len(proto.graph.node)
    if not fuse_layer_norms(proto):
        return model
    restore_annotations(proto, model.proto)
    known = {node.name for node in raised.graph.node}
    made = [node for node in proto.graph.node if node.name not in known]
    for node in made:  # a name that plans and overrides can tell
        node.name = f"{node.output[0]}/norm"
    told = f"{before - len(proto.graph.node) + len(made)} operators are {len(made)} LayerNormalization now"
    return replace(model, proto=proto, notes=(*model.notes, *filter(None, (note, told))))


def _find_last_axes(model: Model) -> Iterator[bool]:
    """Yield for each mean that something is divided by whether it is along the last axis."""
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*model.proto.graph.value_info, *model.proto.graph.input)
        if value.type.tensor_type.HasField("shape") and value.type.tensor_type.elem_type in FLOAT_CODES
    }
    subtracted = {name for node in model.proto.graph.node if node.op_type == "Sub" for name in node.input}
    for node in model.proto.graph.node:
        if node.op_type == "ReduceMean" and node.output[0] in subtracted:
            attributes = attributes_of(node)
            axes = attributes.get("axes")
            given = model.index.array(input_name(node, 1))
            axes = given.tolist() if axes is None and given is not None else axes
            last = ranks.get(node.input[0], 0) - 1
            yield list(axes or ()) in ([-1], [last]) and attributes.get("keepdims", 1) == 1

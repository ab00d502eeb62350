"""Type and shape inference by ONNX."""

from __future__ import annotations

from copy import deepcopy

import onnx
from onnx import shape_inference
from onnx.helper import make_tensor_type_proto

from onnxfq.errors import ModelError
from onnxfq.graph.external.messages import take_fields
from onnxfq.graph.external.weightless import strip_weights
from onnxfq.graph.model import list_graphs
from onnxfq.support.records import join_lines


def with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` with inferred types and shapes (`add_shapes`)."""
    shaped = deepcopy(proto)
    add_shapes(shaped)
    return shaped


def add_shapes(proto: onnx.ModelProto) -> None:
    """Add the types and shapes that ONNX can infer to `proto`, in place; unknown ones stay open.

    The weights are neither used nor copied. Raises ModelError for shapes that contradict each other.
    """
    light = strip_weights(proto)
    try:
        inferred = shape_inference.infer_shapes(light, data_prop=True).graph
    except (RuntimeError, shape_inference.InferenceError):
        try:
            inferred = shape_inference.infer_shapes(light).graph
        except (RuntimeError, shape_inference.InferenceError) as fault:
            raise ModelError(
                "the model is not a valid ONNX model: its shapes contradict each other "
                f"({join_lines(fault)[:180]}); export it again"
            ) from None
    take_fields(proto.graph, inferred, "node", "output", "value_info")


def correct_shapes(proto: onnx.ModelProto) -> str:
    """Remove from `proto`, in place, types and shapes that ONNX's inference contradicts; return a note.

    Outputs get the inferred ones. ONNX Runtime uses its own inference, with a warning; a model derived from
    the declared shapes may fail to load.
    """
    bare = strip_weights(proto)
    try:
        shape_inference.infer_shapes(bare, strict_mode=True)
        return ""
    except (RuntimeError, shape_inference.InferenceError):  # it says no more than the first fault
        pass
    forget_shapes(bare)
    wrong: list[str] = []
    inferred = shape_inference.infer_shapes(bare)
    for graph, known in zip(list_graphs(proto.graph), list_graphs(inferred.graph), strict=True):
        found = {value.name: value.type for value in (*known.value_info, *known.output)}
        for tensor in graph.initializer:  # constants were nodes: a shape may still stand for their output
            found[tensor.name] = make_tensor_type_proto(tensor.data_type, tensor.dims)
        for value in graph.output:
            if value.name in found and _differ(value.type, found[value.name]):
                value.type.CopyFrom(found[value.name])
                wrong.append(value.name)
        gone = [v for v in graph.value_info if v.name in found and _differ(v.type, found[v.name])]
        for value in gone:
            wrong.append(value.name)
            graph.value_info.remove(value)
    return f"{len(wrong)} tensor(s) have another shape than the model says, as {wrong[0]!r}" if wrong else ""


def forget_shapes(proto: onnx.ModelProto) -> None:
    """Remove all types and shapes of inner tensors and of outputs, in bodies too, in place."""
    for graph in list_graphs(proto.graph):
        graph.ClearField("value_info")
        for value in graph.output:
            value.ClearField("type")


def _differ(given: onnx.TypeProto, found: onnx.TypeProto) -> bool:
    """Tell whether no tensor can have both types."""
    if not (given.HasField("tensor_type") and found.HasField("tensor_type")):
        kinds = {kind for one in (given, found) if (kind := one.WhichOneof("value"))}
        return len(kinds) > 1
    one, other = given.tensor_type, found.tensor_type
    if one.elem_type and other.elem_type and one.elem_type != other.elem_type:
        return True
    if not (one.HasField("shape") and other.HasField("shape")):
        return False
    sizes = zip(one.shape.dim, other.shape.dim, strict=False)
    return len(one.shape.dim) != len(other.shape.dim) or any(
        a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value for a, b in sizes
    )

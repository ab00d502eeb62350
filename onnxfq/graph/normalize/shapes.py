"""Types and shapes of tensors, as ONNX infers them."""

from __future__ import annotations

import onnx
from onnx import shape_inference

from onnxfq.graph.external.weightless import without_weights
from onnxfq.graph.model import all_graphs


def with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` with what `add_shapes` puts in."""
    shaped = onnx.ModelProto()
    shaped.CopyFrom(proto)
    add_shapes(shaped)
    return shaped


def add_shapes(proto: onnx.ModelProto) -> None:
    """Put the types and shapes that ONNX can infer into `proto`, in place; unknown ones are left open.

    The weights take no part in it, and no copy of them is made.
    """
    light = without_weights(proto)
    try:
        inferred = shape_inference.infer_shapes(light, data_prop=True).graph
    except (RuntimeError, shape_inference.InferenceError):
        inferred = shape_inference.infer_shapes(light).graph
    for field in ("node", "output", "value_info"):
        proto.graph.ClearField(field)
        getattr(proto.graph, field).extend(getattr(inferred, field))


def correct_shapes(proto: onnx.ModelProto) -> str:
    """Take out of `proto`, in place, types and shapes that ONNX's inference contradicts; return a note.

    Outputs get what is inferred. ONNX Runtime goes by its own inference, with a warning, and what is made of
    such a model by the shapes that it is given may not load.
    """
    bare = without_weights(proto)
    try:
        shape_inference.infer_shapes(bare, strict_mode=True)
        return ""
    except (RuntimeError, shape_inference.InferenceError):  # it says no more than the first fault
        pass
    for graph in all_graphs(bare.graph):
        graph.ClearField("value_info")
        for value in graph.output:
            value.ClearField("type")
    wrong: list[str] = []
    inferred = shape_inference.infer_shapes(bare)
    for graph, known in zip(all_graphs(proto.graph), all_graphs(inferred.graph), strict=True):
        found = {value.name: value.type for value in (*known.value_info, *known.output)}
        for value in graph.output:
            if value.name in found and _differ(value.type, found[value.name]):
                value.type.CopyFrom(found[value.name])
                wrong.append(value.name)
        gone = [v for v in graph.value_info if v.name in found and _differ(v.type, found[v.name])]
        for value in gone:
            wrong.append(value.name)
            graph.value_info.remove(value)
    return f"{len(wrong)} tensor(s) have another shape than the model says, as {wrong[0]!r}" if wrong else ""


def _differ(given: onnx.TypeProto, found: onnx.TypeProto) -> bool:
    """Tell whether no tensor can be both."""
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

"""Element types that ONNX cannot infer, as those behind custom operators: ONNX Runtime knows them."""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import TensorProto, helper

from onnxfq.errors import OnnxfqError
from onnxfq.graph.model import Model
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.graph.opset import with_shapes
from onnxfq.runtime.session import Session

_TYPES = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(bfloat16)": TensorProto.BFLOAT16,
    "tensor(double)": TensorProto.DOUBLE,
}


def with_found_types(model: Model) -> tuple[Model, str]:
    """Return (`model` with types of what weighted operators read that only ONNX Runtime can tell, why not).

    A session is made and nothing is run. Where it cannot be made, the model is returned as it is, with the
    reason: what has no known type stays in float, and the plan says so.
    """
    graph = model.proto.graph
    known = {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
    known |= {tensor.name for tensor in graph.initializer}
    readers = [node for node in graph.node if node.op_type in WEIGHTED_INPUTS]
    asked = list(dict.fromkeys(n for node in readers for n in node.input[:2] if n not in known))
    if not asked:
        return model, ""
    probe = onnx.ModelProto()
    probe.CopyFrom(model.proto)
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in asked)
    try:
        found = Session(probe, 1).output_types
    except OnnxfqError as error:
        return model, str(error)
    typed = onnx.ModelProto()
    typed.CopyFrom(model.proto)
    for name in asked:
        if found.get(name) in _TYPES:
            typed.graph.value_info.append(helper.make_tensor_value_info(name, _TYPES[found[name]], None))
    return replace(model, proto=with_shapes(typed)), ""

"""Models of float16 and bfloat16, and values for them."""

from __future__ import annotations

import numpy as np
import onnx
from builders import feed_for
from onnx import TensorProto, numpy_helper

from onnxfq.graph.model import list_graphs
from onnxfq.numerics.float_types import FLOATS

HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


# Conv takes bfloat16 from opset 22 on.
OPSETS = {"float16": 17, "bfloat16": 22}


def as_type(proto: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """Return `proto` with every float32 tensor of type `kind`, bodies included."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    made.opset_import[0].version, made.ir_version = OPSETS[kind], 10
    for graph in list_graphs(made.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = HALVES[kind]
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                values = numpy_helper.to_array(tensor).astype(FLOATS[kind].dtype)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return made


def half_feed(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return values for every input; bfloat16 ones as the float32 that they are fed as."""
    halves = {v.name for v in proto.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT16}
    return {
        name: array.astype(np.float16) if name in halves else array for name, array in feed_for(proto).items()
    }

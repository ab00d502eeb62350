"""Inputs of a model as `InputSpec`."""

from __future__ import annotations

import numpy as np
import onnx

from onnxfq.data import InputSpec
from onnxfq.errors import ModelError


def input_specs(proto: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """Return the inputs to feed; bfloat16 inputs are fed as float32, because NumPy lacks bfloat16.

    Raises ModelError for inputs that are not tensors.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    return tuple(_spec(value) for value in proto.graph.input if value.name not in constants)


def _spec(value: onnx.ValueInfoProto) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"input {value.name!r} is not a tensor; onnxfq feeds tensors only")
    tensor = value.type.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values()[1:]:
        raise ModelError(f"input {value.name!r} has no known element type; export the model again")
    half = tensor.elem_type == onnx.TensorProto.BFLOAT16
    dtype = np.dtype(np.float32 if half else onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if not tensor.HasField("shape"):
        return InputSpec(value.name, dtype, None)
    # A dimension without a value, or with 0 or -1 as some exporters write, is open.
    shape = tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim)
    return InputSpec(value.name, dtype, shape)

"""Fields of an ONNX node as plain values: attributes, inputs by slot, constants, types of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfq.graph.ops import STANDARD_DOMAINS


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of `node` by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def input_name(node: onnx.NodeProto, slot: int | None) -> str:
    """Return the name of an input; empty if it is left out."""
    return node.input[slot] if slot is not None and slot < len(node.input) else ""


def numbers_type(node: onnx.NodeProto, zero_point: int | None) -> int:
    """Return the element type of the numbers that a QuantizeLinear gives.

    Args:
        node: the QuantizeLinear.
        zero_point: element type of its zero point, which decides; None without one.
    """
    return int(zero_point or attributes_of(node).get("output_dtype") or TensorProto.UINT8)


_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_string", "value_strings"), object),
}
"""Types of numbers and texts that a Constant has as its attribute."""


def constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant node from any of its attributes; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return None
    name, value = next(iter(attributes_of(node).items()))
    if name == "value":
        return value
    if name == "sparse_value":
        return dense_values(value, node.output[0])
    dtype = _CONSTANTS.get(name)
    return None if dtype is None else numpy_helper.from_array(np.asarray(value, dtype))


def dense_values(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """Return the dense form; indices are flat [values] or coordinates [values, rank]."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return numpy_helper.from_array(dense, name)

"""Sizes of tensors and models, and the limits that decide where weights are kept."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from onnxfq.graph.external.tensor import ExternalTensor, is_external

SMALL = 1024
"""Largest tensor, in bytes, that is always inside the model: shapes and scales that ONNX's tools read."""

IN_MEMORY = 128 << 20
"""Bytes of a file, or of weights, up to which a loaded model and models derived from it stay in memory."""

STAGED = 16 << 20
"""The same within `quantize`: its sessions read a file faster, and in less memory, than a message."""

ONE_PIECE = 512 << 20
"""Bytes of weights, as float32, up to which a model is handed out and run in one piece."""

LIMIT = (1 << 31) - (1 << 20)
"""Bytes of tensors that one ONNX file holds; protobuf ends at 2 GB, and the structure needs some."""

PACKED_TYPES = frozenset(
    int(getattr(TensorProto, name))
    for name in ("FLOAT4E2M1", "INT2", "INT4", "UINT2", "UINT4", "FLOAT6E2M3", "FLOAT6E3M2")
    if hasattr(TensorProto, name)
)
"""Types that store several elements in a byte; NumPy arrays do not."""

_NUMBERS = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING}


def limit_in_memory(wanted: int | None) -> int:
    """Return `wanted` bytes, by default and at most IN_MEMORY."""
    return IN_MEMORY if wanted is None else min(wanted, IN_MEMORY)


def element_bytes(data_type: int) -> int | None:
    """Return the bytes of an element; None for strings and for types that the installed onnx lacks."""
    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize) if data_type in _NUMBERS else None


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of the values of `tensor` in bytes."""
    if is_external(tensor):
        return ExternalTensor.of(tensor).length or 0
    return len(tensor.raw_data) or int(tensor.ByteSize())


def is_small(tensor: onnx.TensorProto) -> bool:
    """Tell whether `tensor` always stays inside the model."""
    if is_external(tensor):
        return False
    return tensor.data_type == TensorProto.STRING or tensor_bytes(tensor) <= SMALL


def weight_bytes(proto: onnx.ModelProto) -> int:
    """Return the size of the initializers of `proto` in bytes."""
    return sum(map(tensor_bytes, proto.graph.initializer))


def file_bytes(proto: onnx.ModelProto) -> int:
    """Return the size of a file of `proto` with its data, in bytes."""
    return int(proto.ByteSize()) + sum(map(tensor_bytes, filter(is_external, proto.graph.initializer)))


def is_large(proto: onnx.ModelProto) -> bool:
    """Tell whether `proto` has too many weights for one piece: they are made and run one at a time."""
    elements: int = sum(math.prod(tensor.dims) for tensor in proto.graph.initializer)
    return 4 * elements > ONE_PIECE


def large_tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the initializers that must leave `proto` before it becomes one message; none if it fits."""
    tensors = proto.graph.initializer
    if not any(map(is_external, tensors)) and weight_bytes(proto) <= LIMIT:
        return []
    return [tensor for tensor in tensors if not is_small(tensor)]

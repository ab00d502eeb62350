"""Models without their weights: what is edited, checked and passed around stays small."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from onnxfq.graph.io.external_tensors import chunks, is_stored

LARGE = 1024
"""Bytes from which on a constant is left out; shapes and scalars, which inference reads, stay."""


def split_weights(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Write the large initializers of `proto` to `path`; return a copy that refers to them there.

    One weight at a time is in memory twice. The copy is to be saved in the folder of `path`.
    """
    light = without_initializers(proto)
    with path.open("wb") as stream:
        for tensor in proto.graph.initializer:
            kept = light.graph.initializer.add()
            if _is_large(tensor):
                offset = stream.tell()
                for part in chunks(tensor):
                    stream.write(part)
                kept.name, kept.data_type = tensor.name, tensor.data_type
                kept.dims.extend(tensor.dims)
                kept.data_location = TensorProto.EXTERNAL
                for key, entry in (
                    ("location", path.name),
                    ("offset", str(offset)),
                    ("length", str(stream.tell() - offset)),
                ):
                    kept.external_data.add(key=key, value=entry)
            else:
                kept.CopyFrom(tensor)
    return light


def without_weights(proto: onnx.ModelProto, *, emptied: bool = False) -> onnx.ModelProto:
    """Return a copy of `proto` whose large initializers have type and shape, and no values.

    emptied: they have the shape [0] instead, so that the copy is valid by itself.
    """
    light = without_initializers(proto)
    for tensor in proto.graph.initializer:
        kept = light.graph.initializer.add()
        if _is_large(tensor):
            kept.name, kept.data_type = tensor.name, tensor.data_type
            kept.dims.extend([0] if emptied else tensor.dims)
        else:
            kept.CopyFrom(tensor)
    return light


def _is_large(tensor: TensorProto) -> bool:
    return is_stored(tensor) or (tensor.HasField("raw_data") and len(tensor.raw_data) >= LARGE)


def without_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` but for its initializers."""
    light = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name != "graph":
            _copy_field(light, field.name, value)
    light.graph.SetInParent()
    for field, value in proto.graph.ListFields():
        if field.name != "initializer":
            _copy_field(light.graph, field.name, value)
    return light


def _copy_field(target: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    if isinstance(value, (str, bytes, int, float)):
        setattr(target, name, value)
    elif hasattr(value, "extend") or hasattr(value, "add"):
        getattr(target, name).extend(value)
    else:
        getattr(target, name).CopyFrom(value)

"""A model without its weights, and the weights in a file beside: what is edited and loaded stays small."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

LARGE = 1024
"""Bytes from which on a constant goes to the file; shapes and scalars, which inference reads, stay."""


def split_weights(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Write the large initializers of `proto` to `path`; return a copy that refers to them there.

    One weight at a time is in memory twice. The copy is to be saved in the folder of `path`.
    """
    light = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name != "graph":
            _copy_field(light, field.name, value)
    for field, value in proto.graph.ListFields():
        if field.name != "initializer":
            _copy_field(light.graph, field.name, value)
    with path.open("wb") as stream:
        for tensor in proto.graph.initializer:
            kept = light.graph.initializer.add()
            if tensor.HasField("raw_data") and len(tensor.raw_data) >= LARGE:
                offset = stream.tell()
                stream.write(tensor.raw_data)
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


def _copy_field(target: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    if isinstance(value, (str, bytes, int, float)):
        setattr(target, name, value)
    elif hasattr(value, "extend") or hasattr(value, "add"):
        getattr(target, name).extend(value)
    else:
        getattr(target, name).CopyFrom(value)

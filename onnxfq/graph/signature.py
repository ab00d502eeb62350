"""Inputs and outputs of a model by name."""

from __future__ import annotations

from collections.abc import Iterable

import onnx


def output_names(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the outputs in order."""
    return tuple(value.name for value in proto.graph.output)


def with_outputs(proto: onnx.ModelProto, tensors: Iterable[str]) -> onnx.ModelProto:
    """Return `proto` with inner tensors as additional outputs."""
    have = set(output_names(proto))
    extra = [name for name in tensors if name not in have]
    if not extra:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in extra)
    return copy

"""Inputs and outputs of a model by name, and the boundaries of quantized kernels."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnxfq.graph.ops import ONNX_QUANTIZERS


def output_names(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the outputs in order."""
    return tuple(value.name for value in proto.graph.output)


def computed_tensors(proto: onnx.ModelProto) -> set[str]:
    """Return the tensors that nodes of the main graph compute."""
    return {name for node in proto.graph.node for name in node.output if name}


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


def boundaries(proto: onnx.ModelProto) -> list[str]:
    """Return the tensors of the main graph that quantizers read, and its outputs.

    Every runtime has these tensors, because a fused kernel computes up to them; it may lack tensors in
    between.
    """
    wanted = set(output_names(proto))
    wanted |= {node.input[0] for node in proto.graph.node if node.op_type in ONNX_QUANTIZERS}
    return [name for node in proto.graph.node for name in node.output if name in wanted]

"""Boundary tensors of quantized kernels: comparison points of two runtimes."""

from __future__ import annotations

import onnx

from onnxfq.graph.ops import ONNX_QUANTIZERS
from onnxfq.graph.signature import output_names


def boundaries(proto: onnx.ModelProto) -> list[str]:
    """Return the tensors of the main graph that quantizers read, and its outputs.

    Every runtime has these tensors, because a fused kernel computes up to them; it may lack tensors in
    between.
    """
    wanted = set(output_names(proto))
    wanted |= {node.input[0] for node in proto.graph.node if node.op_type in ONNX_QUANTIZERS}
    return [name for node in proto.graph.node for name in node.output if name in wanted]

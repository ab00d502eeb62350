"""The float tensors at which quantized kernels end: what two runtimes can be compared by."""

from __future__ import annotations

import onnx

from onnxfq.graph.ops import ONNX_QUANTIZERS
from onnxfq.graph.signature import number_outputs


def boundaries(proto: onnx.ModelProto) -> list[str]:
    """Return the computed tensors of the main graph that a quantizer reads, and its outputs of numbers.

    A fused kernel computes up to there, so any runtime has these numbers; what is between it may not have.
    """
    wanted = set(number_outputs(proto))
    wanted |= {node.input[0] for node in proto.graph.node if node.op_type in ONNX_QUANTIZERS}
    return [name for node in proto.graph.node for name in node.output if name in wanted]

"""`as_pairs`: a file of another tool with ONNX's own quantizers, as every reader of them takes it."""

from __future__ import annotations

import onnx

from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import QUANTIZED_OPS
from onnxfq.quantized.qonnx import pairs_of_qonnx
from onnxfq.quantized.stored_casts import pairs_of_casts


def as_pairs(proto: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """Return a read model with pairs for quantizers of QONNX, and DequantizeLinear for Cast times a scale.

    A model without any is returned itself. Raises ModelError for a quantizer that no pair can be.
    """
    return pairs_of_casts(pairs_of_qonnx(proto, source), source)


def is_quantized(proto: onnx.ModelProto) -> bool:
    """Tell whether a model or a local function has a quantizer, or an operator of quantized numbers."""
    nodes = (node for one in (proto.graph, *proto.functions) for node in list_nodes(one))
    return any(node.op_type in QUANTIZED_OPS for node in nodes)

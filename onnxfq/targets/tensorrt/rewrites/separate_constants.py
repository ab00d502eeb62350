"""Separate quantized constants for graphs that dequantize the same one: TensorRT builds no shared one.

Tried on TensorRT for RTX 1.7.1 with both branches of an If, and with a branch and the main graph. Builder:
"Quantized constant is only allowed before DQ". One graph alone may read a constant from outside.
"""

from __future__ import annotations

import onnx

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs

_DEQUANTIZERS = ("DequantizeLinear", "TRT_MXFP8DequantizeLinear")


def separate_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy, in place, each constant that DequantizeLinear nodes of several graphs read; return `proto`."""
    graphs = list_graphs(proto.graph)
    if len(graphs) == 1:
        return proto
    index = GraphIndex.of_model(proto)
    copies: dict[str, dict[int, str]] = {}
    for number, graph in enumerate(graphs):
        for node in graph.node:
            name = node.input[0] if node.op_type in _DEQUANTIZERS else ""
            if name not in index.constants:
                continue
            known = copies.setdefault(name, {number: name})
            if number not in known:
                known[number] = index.names.claim(name)
                proto.graph.initializer.add().CopyFrom(index.constants[name])
                proto.graph.initializer[-1].name = known[number]
            node.input[0] = known[number]
    return proto

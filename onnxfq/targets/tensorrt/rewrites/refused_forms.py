"""Forms that TensorRT refuses or runs in float, rewritten: average pools and shared constants.

TensorRT for RTX 1.7.1 runs an AveragePool without padding in float, unless its attribute count_include_pad is
1. Without padding the attribute changes no number.

It builds no quantized constant that several graphs dequantize. Tried with both branches of an If, and with a
branch and the main graph. Builder: "Quantized constant is only allowed before DQ". One graph alone may read a
constant from outside.
"""

from __future__ import annotations

import onnx
from onnx import helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs
from onnxfq.graph.ops import STANDARD_DOMAINS


def count_padding(proto: onnx.ModelProto) -> str:
    """Set count_include_pad of every AveragePool without padding, in place; return a note, empty without one.

    Nodes of bodies do not change. With ceil_mode the last window may reach beyond the input, and such a
    node does not change either.
    """
    found = [node for node in proto.graph.node if node.op_type == "AveragePool" and _has_no_padding(node)]
    for node in found:
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "count_include_pad")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 1)])
    if not found:
        return ""
    return (
        f"count_include_pad set for {len(found)} AveragePool without padding: TensorRT has int8 for it only"
    )


def _has_no_padding(node: onnx.NodeProto) -> bool:
    if node.domain not in STANDARD_DOMAINS:
        return False
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or attrs.get("ceil_mode", 0):
        return False
    return not any(attrs.get("pads", ())) and not attrs.get("count_include_pad", 0)


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

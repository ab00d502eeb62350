"""Forms that TensorRT refuses or runs in float: average pools, shared constants, casts before loops.

TensorRT for RTX 1.7.1 runs an AveragePool without padding in float, unless its attribute count_include_pad is
1. Without padding the attribute changes no number.

It builds no quantized constant that several graphs dequantize. Tried with both branches of an If, and with a
branch and the main graph. Builder: "Quantized constant is only allowed before DQ". One graph alone may read a
constant from outside.

It builds no Cast in front of a recurrent operator of several steps. Measured for LSTM, GRU and RNN, with and
without operators between that only move: the builder ends with "Error during shape inference". It builds a
single step, an open number of steps, and any operator that computes between the Cast and the loop; so it does
loops all in float32 or in a half type.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs
from onnxfq.graph.ops import RECURRENT_OPS, STANDARD_DOMAINS


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


CAST_BEFORE_LOOP = "{} {!r} reads it, and TensorRT builds no Cast in front of a loop of several steps"


def count_steps(node: onnx.NodeProto, shape: Sequence[int | None] | None) -> int | None:
    """Return the steps of a recurrent operator whose input has `shape`; None for others and for open ones."""
    if node.op_type not in RECURRENT_OPS or shape is None or len(shape) != 3:
        return None
    batch_first = any(a.name == "layout" and a.i == 1 for a in node.attribute)
    return shape[1 if batch_first else 0]

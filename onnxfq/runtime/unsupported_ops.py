"""What a written model may hold and ONNX Runtime cannot run on a CPU: known before a session is made."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from onnxfq.graph.model import all_nodes

# Operators that only TensorRT's parser knows.
_FOREIGN_DOMAINS = {"trt": "TensorRT"}

NO_KERNEL = ("float4e2m1", "float6e2m3", "float6e3m2")
"""Types of which onnxruntime 1.31.1 has no QuantizeLinear and no DequantizeLinear."""


def cannot_run(proto: onnx.ModelProto, *, as_written: bool = True) -> str:
    """Return why ONNX Runtime cannot run `proto`, the first reason found; an empty string when it can.

    as_written: bfloat16 counts, of which it has next to no kernels; False for what `widened` has made, whose
    operators are float32 and whose Casts to bfloat16 it has.
    """
    nodes = all_nodes(proto.graph)
    with_body = {(function.domain, function.name) for function in proto.functions}
    for node in nodes:
        if node.domain in _FOREIGN_DOMAINS and (node.domain, node.op_type) not in with_body:
            return f"ONNX Runtime has no {node.op_type}, an operator of {_FOREIGN_DOMAINS[node.domain]}"
    names = ("bfloat16", *NO_KERNEL) if as_written else NO_KERNEL
    known = dict(TensorProto.DataType.items())  # the installed onnx may be older than a type
    missing = {known[name.upper()]: name for name in names if name.upper() in known}
    found = next((missing[kind] for kind in _types(proto, nodes) if kind in missing), None)
    return f"ONNX Runtime has no kernels for {found}" if found else ""


def _types(proto: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> Iterator[int]:
    for tensor in proto.graph.initializer:
        yield tensor.data_type
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("output_dtype", "to"):
                yield attribute.i

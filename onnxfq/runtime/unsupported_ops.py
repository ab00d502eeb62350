"""Operators that ONNX Runtime cannot run on a CPU, found before a session is created."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from onnxfq.graph.model import list_nodes

FOREIGN_DOMAINS: dict[str, str] = {"trt": "TensorRT"}
"""Operator domains of a single target -> name of the target; registered targets add theirs."""

NO_KERNEL = ("float4e2m1", "float6e2m3", "float6e3m2")
"""Types without QuantizeLinear and DequantizeLinear in onnxruntime 1.31.1."""


_FLOAT8 = {code for name, code in TensorProto.DataType.items() if name.startswith("FLOAT8")}


def explain_unsupported(proto: onnx.ModelProto, *, as_written: bool = True) -> str:
    """Return the first reason why ONNX Runtime cannot run `proto`; an empty string if it can.

    Args:
        proto: the model.
        as_written: bfloat16 counts as unsupported; False for results of `widen_model`, which compute in
            float32 and only cast to bfloat16.
    """
    nodes = list_nodes(proto.graph)
    with_body = {(function.domain, function.name) for function in proto.functions}
    for node in nodes:
        if node.domain in FOREIGN_DOMAINS and (node.domain, node.op_type) not in with_body:
            return f"ONNX Runtime has no {node.op_type}, an operator of {FOREIGN_DOMAINS[node.domain]}"
    float8 = {value.name for value in proto.graph.input if value.type.tensor_type.elem_type in _FLOAT8}
    if any(node.op_type == "GroupQueryAttention" and not float8.isdisjoint(node.input) for node in nodes):
        return "ONNX Runtime has no GroupQueryAttention with caches of float8 on a CPU"
    names = ("bfloat16", *NO_KERNEL) if as_written else NO_KERNEL
    known = dict(TensorProto.DataType.items())  # the installed onnx may be older than a type
    missing = {known[name.upper()]: name for name in names if name.upper() in known}
    type_name = next((missing[kind] for kind in _types(proto, nodes) if kind in missing), None)
    return f"ONNX Runtime has no kernels for {type_name}" if type_name else ""


def _types(proto: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> Iterator[int]:
    for tensor in proto.graph.initializer:
        yield tensor.data_type
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("output_dtype", "to"):
                yield attribute.i

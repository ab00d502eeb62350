"""Operators that ONNX Runtime cannot run on a CPU, found before a session is created."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import default_opset, list_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.ops import MOVES, STANDARD_DOMAINS

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


def explain_broken(proto: onnx.ModelProto) -> str:
    """Return which form in `proto` onnxruntime 1.31.1 breaks above ORT_ENABLE_BASIC; empty if none is known.

    Tried on every kind of operator and format: fused kernels of products take these forms and then refuse
    the model, fail when they run, crash, or read float8 as integers.
    """
    index, opset = GraphIndex.of_model(proto), default_opset(proto)
    for node in index.nodes:
        if node.op_type not in ("MatMul", "Gemm") or node.domain not in STANDARD_DOMAINS:
            continue
        dequantizers = [_find_dequantizer(index, name) for name in node.input[:2]]
        computed = [dq is not None and dq.input[0] not in index.constants for dq in dequantizers]
        for slot, dq in enumerate(dequantizers):
            if dq is None:
                continue
            where = f"{node.op_type} {node.name!r}, "
            if computed[slot] and index.types.get(dq.input[0]) in _FLOAT8:
                return f"{where}a float8 input"
            if opset > 20 and computed[slot] and node.op_type == "MatMul" and _is_moved(index, node, dq):
                return f"{where}an int8 input of three axes in front of an Add"
            blocks = bool(attributes_of(dq).get("block_size"))
            if node.op_type == "MatMul" and blocks and computed[1 - slot]:
                return f"{where}a weight in blocks beside a quantized input"
            zeros = index.constants.get(input_name(dq, 2))
            varied = zeros is not None and len(zeros.dims) > 0 and np.any(tensor_array(zeros))
            if node.op_type == "MatMul" and slot == 0 and varied:
                return f"{where}a first operand with several zero points"
    return ""


def _is_moved(index: GraphIndex, product: onnx.NodeProto, dq: onnx.NodeProto) -> bool:
    """Tell whether an int8 pair with a zero point is moved over a Reshape, where it gets one of uint8.

    A MatMul of three axes with an Add becomes a Gemm between two Reshapes.
    """
    adds = any(reader.op_type == "Add" for reader in index.readers.get(product.output[0], ()))
    int8 = len(dq.input) > 2 and index.types.get(dq.input[2]) == TensorProto.INT8
    return adds and int8 and len(index.shape(product.input[0]) or ()) > 2


def _find_dequantizer(index: GraphIndex, name: str) -> onnx.NodeProto | None:
    maker = index.makers.get(name)
    while maker is not None and maker.op_type in MOVES:
        maker = index.makers.get(maker.input[0])
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def _types(proto: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> Iterator[int]:
    for tensor in proto.graph.initializer:
        yield tensor.data_type
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("output_dtype", "to"):
                yield attribute.i

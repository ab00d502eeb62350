"""Sizes of tensors, checked before anything is computed: a few bytes may stand for gigabytes."""

from __future__ import annotations

import math
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnxfq.errors import ModelError
from onnxfq.graph.external import sizes
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.normalize.fold_weights import find_constant_tensors
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import CONVOLUTIONS, QDQ_OPS, STANDARD_DOMAINS

MOST_UNFOLDED = 1 << 30
"""Largest tensor, in bytes, that a model may compute from constants alone, or store as a sparse one."""
MOST_ELEMENTS = (1 << 31) - 1
"""Most elements of a tensor in TensorRT, and of most kernels."""

Shape = tuple[int | None, ...]

_SCALED_OPS = QDQ_OPS | {"FakeQuantize"}
_LEAST_RANKS = {"MatMul": 1, "Gemm": 2, "Conv": 3, "ConvTranspose": 3}

# Operators whose results can be much larger than everything they read.
_GROWING = frozenset(
    tuple("ConstantOfShape Expand EyeLike OneHot Pad RandomNormal RandomUniform Range Resize".split())
    + ("Tile", "Upsample")
)


def check_sizes(proto: onnx.ModelProto, source: str) -> None:
    """Raise ModelError for values that do not fit their shapes, which ONNX's checker partly misses."""
    for graph in list_graphs(proto.graph):
        for tensor in graph.initializer:
            _check_values(tensor, source)
        for sparse in graph.sparse_initializer:
            _check_sparse(sparse, source)
    for owner in (proto.graph, *proto.functions):
        for attribute in (a for node in list_nodes(owner) for a in node.attribute):
            one = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*attribute.sparse_tensors, *one):
                _check_sparse(sparse, source)


def check_operands(proto: onnx.ModelProto, source: str) -> None:
    """Raise ModelError for weights of too low a rank, and for quantizers of other domains without a scale."""
    constants = GraphIndex(proto.graph).constants
    for node in (node for owner in (proto.graph, *proto.functions) for node in list_nodes(owner)):
        if node.op_type in _SCALED_OPS and len(node.input) < 2:
            raise ModelError(
                f"{source}: {node.op_type} {node.name!r} of domain {node.domain!r} has the name of a "
                "quantizer and no scale; give the operator another name"
            )
    for node in list_nodes(proto.graph):
        least = _LEAST_RANKS.get(node.op_type, 0) if node.domain in STANDARD_DOMAINS else 0
        for name in node.input[:2]:
            if name in constants and len(constants[name].dims) < least:
                raise ModelError(
                    f"{source} is not a valid ONNX model: {node.op_type} {node.name!r} reads {name!r} of "
                    f"rank {len(constants[name].dims)}, and needs {least} at least; export it again"
                )


def check_products(proto: onnx.ModelProto, source: str) -> None:
    """Raise ModelError for multiplied operands of `proto` whose known shapes do not fit each other.

    ONNX's checker compares no shapes, and its inference no groups of a convolution.
    """
    index = GraphIndex.of_model(proto)
    for node in index.nodes:
        multiplied = node.domain in STANDARD_DOMAINS and node.op_type in _LEAST_RANKS
        shapes = [index.shape(name) for name in node.input[:2]] if multiplied else []
        if len(shapes) < 2 or None in shapes:
            continue
        attrs = attributes_of(node)
        why = _explain_misfit(node.op_type, attrs, *(shape for shape in shapes if shape is not None))
        if why:
            named = zip(node.input, shapes, strict=False)
            both = " and ".join(f"{name!r} of shape {list(shape or ())}" for name, shape in named)
            raise ModelError(
                f"{source} is not a valid ONNX model: {node.op_type} {node.name!r} multiplies {both}: {why}; "
                "export it again"
            )


def _explain_misfit(op: str, attrs: dict[str, Any], left: Shape, right: Shape) -> str:
    """Return why operands of these shapes cannot be multiplied; empty if they can, as far as known."""
    if op in CONVOLUTIONS:
        group, turned = attrs.get("group", 1), op == "ConvTranspose"
        made, read = right[0], right[1]
        if len(left) != len(right) or made is None or read is None:
            return f"their ranks are {len(left)} and {len(right)}" if len(left) != len(right) else ""
        if group < 1 or made % group:
            return f"{group} groups do not divide {made} channels"
        wanted = made if turned else read * group
        return "" if left[1] in (None, wanted) else f"{group} group(s) want {wanted} channels"
    if min(len(left), len(right)) < 2:
        return ""
    one, other = left[-1], right[-2]
    if op == "Gemm":
        one, other = left[-2 if attrs.get("transA", 0) else -1], right[-1 if attrs.get("transB", 0) else -2]
    return "" if None in (one, other) or one == other else f"{one} and {other} are summed over together"


def check_unfolded(proto: onnx.ModelProto, source: str) -> None:
    """Raise ModelError if ONNX infers a constant or another tensor that is too large to compute."""
    constants = GraphIndex(proto.graph).stored.keys()
    fixed = find_constant_tensors(proto, constants) - constants
    if not fixed and not any(node.op_type in _GROWING for node in list_nodes(proto.graph)):
        return
    try:
        shaped = with_shapes(proto)
    except ModelError:  # a later step corrects its shapes, or says what is wrong with them
        return
    for graph in list_graphs(shaped.graph):
        makers = GraphIndex(graph).makers
        for value in (*graph.value_info, *graph.output):
            node = makers.get(value.name)
            kind = value.type.tensor_type
            if node is None or not all(dim.dim_value > 0 for dim in kind.shape.dim):
                continue
            shape = [dim.dim_value for dim in kind.shape.dim]
            length = math.prod(shape) * (sizes.element_bytes(kind.elem_type) or 1)
            many = math.prod(shape) > MOST_ELEMENTS
            if many or (value.name in fixed and length > MOST_UNFOLDED):
                limit = f"{MOST_ELEMENTS:,} elements" if many else f"{MOST_UNFOLDED >> 30} GB of constants"
                raise ModelError(
                    f"{source}: {node.op_type} {node.name!r} makes {value.name!r} of shape {shape}, "
                    f"{length / 1e9:,.1f} GB, and a tensor has at most {limit}; export the model again"
                )


def _check_values(tensor: TensorProto, source: str) -> None:
    element = sizes.element_bytes(tensor.data_type)
    is_packed = tensor.data_type in (*sizes.PACKED_TYPES, TensorProto.COMPLEX64, TensorProto.COMPLEX128)
    if is_packed or any(size < 0 for size in tensor.dims) or element is None:
        return  # the checker refuses the last two
    if is_external(tensor):
        have = sizes.tensor_bytes(tensor)
    elif tensor.HasField("raw_data"):
        have = len(tensor.raw_data)
    else:
        have = element * len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    want = element * math.prod(tensor.dims)
    if have != want:
        raise ModelError(
            f"{source} is damaged: {tensor.name!r} has {have} bytes, and its shape {list(tensor.dims)} "
            f"needs {want}; export it again"
        )


def _check_sparse(sparse: onnx.SparseTensorProto, source: str) -> None:
    length = math.prod(sparse.dims) * (sizes.element_bytes(sparse.values.data_type) or 1)
    if not 0 <= length <= MOST_UNFOLDED:
        raise ModelError(
            f"{source}: sparse tensor {sparse.values.name!r} of shape {list(sparse.dims)} has "
            f"{length / 1e9:,.1f} GB when dense, and at most {MOST_UNFOLDED >> 30} GB are unfolded; store it "
            "dense"
        )

"""MXFP8, NVFP4 and MXFP4 for TensorRT's parser: its own operators for activations, constants for weights.

    MXFP8  x -> TRT_MXFP8DynamicQuantize -> codes, scales -> TRT_MXFP8DequantizeLinear
           weight: float8 codes and uint8 exponents (bias 127) -> TRT_MXFP8DequantizeLinear
    NVFP4  x, global scale -> TRT_FP4DynamicQuantize -> codes, e4m3 scales; scales, global scale ->
           DequantizeLinear; codes, scales -> DequantizeLinear
           weight: float4 codes, e4m3 scales and the global scale -> the same two DequantizeLinear
    MXFP4  weight alone: float4 codes and float32 powers of two -> DequantizeLinear

Tried on TensorRT for RTX 1.7.1. Its parser refuses e8m0 constants: the exponents are stored as uint8, and
in MXFP4 as float32, because the parser has TRT_MXFP8DequantizeLinear for float8 only. Its dynamic
operators take 2-D and 3-D tensors only: an activation of more axes becomes a matrix of rows in front of them,
and the product with the weight gets its axes back behind it. The values are the same.

Activations of more axes are multiplied as matrices of their rows:

    x[B, H, W, K] -> x[B*H*W, K] -> quantizer -> MatMul with w[K, N] -> y[B*H*W, N] -> y[B, H, W, N]

Each row is multiplied alone. With fixed and open sizes NVFP4 multiplies so in float4, but in float if the
axes come back in front of an open product.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.errors import PlanError
from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor, custom_node, import_domain
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.float_types import BLOCK_FORMATS, FLOATS, block_format_name
from onnxfq.passes.qdq_form import Writer

DOMAIN = "trt"
"""Domain of the operators that TensorRT's parser adds to ONNX's."""

WEIGHTS_ALONE = "MXFP4"
"""The format that TensorRT takes for a weight only if activations are float."""

_EXPONENT_BIAS = 127


def block_writer(placement: Placement) -> Writer | None:
    """Return the writer of a placed tensor in a format of `BLOCK_FORMATS`; None for other formats."""
    spec = placement.spec
    name = block_format_name(spec.qtype, spec.scale_type)
    dynamic = placement.role == "activation"
    fits = name and spec.granularity.axis is not None and spec.dynamic == dynamic
    fits = fits and not (dynamic and name == WEIGHTS_ALONE)
    if not fits or spec.granularity.block_size != BLOCK_FORMATS[name].block_size:
        return None
    return insert_block_format


def insert_block_format(editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding) -> None:
    """Put the operators of `encoding`'s format between `tensor` and its placed readers."""
    form = _mxfp8 if encoding.spec.qtype.bits == 8 else _float4
    read: gs.Tensor = tensor
    before: list[gs.Node] = []
    if not isinstance(tensor, gs.Constant) and len(tensor.shape or ()) > DYNAMIC_RANKS[-1]:
        _refuse_other_readers(editor, placement)
        read, before = make_rows(editor, tensor)
        granularity = replace(encoding.spec.granularity, axis=1)
        encoding = encoding.model_copy(
            update={"spec": encoding.spec.model_copy(update={"granularity": granularity})}
        )
    dequantized = editor.variable(f"{tensor.name}/dq", read)
    if isinstance(tensor, gs.Constant):
        dequantized.dtype, dequantized.shape = tensor.dtype, list(tensor.shape)
    nodes = form(editor, placement, read, encoding, dequantized)
    if any(node.domain == DOMAIN for node in nodes):
        import_domain(editor.graph, DOMAIN)
    editor.rewire(placement, dequantized)
    editor.insert_before(placement, tensor, [*before, *nodes])
    for product in list(dequantized.outputs) if before else ():
        give_axes_back(editor, tensor, product)


def _refuse_other_readers(editor: Editor, placement: Placement) -> None:
    """Raise PlanError if a reader of a tensor of many axes does not multiply its rows by one matrix."""
    for use in placement.uses:
        if not (use.node and multiplies_rows(editor.node(use.node), use.input)):
            raise PlanError(
                f"tensor {placement.tensor!r}: TensorRT takes {DYNAMIC_RANKS[-1]} axes at most in this "
                f"format, and {use.node!r} does not multiply its rows by one matrix; remove the tensor from "
                "the plan"
            )


def _mxfp8(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, out: gs.Tensor
) -> list[gs.Node]:
    name, blocks = placement.tensor, encoding.spec.granularity.attributes
    if isinstance(tensor, gs.Constant):
        exponents = np.frexp(encoding.scale)[1] - 1 + _EXPONENT_BIAS
        codes = editor.constant(f"{name}/q", _codes(tensor, encoding))
        pair = [codes, editor.constant(f"{name}/scale", exponents.astype(np.uint8))]
        nodes = []
    else:
        pair = _pair(editor, name, tensor, encoding, TensorProto.UINT8)
        attrs = blocks | {"output_dtype": encoding.spec.qtype.onnx_type}
        nodes = [_tensorrt_node("TRT_MXFP8DynamicQuantize", f"{name}/q", attrs, [tensor], pair)]
    real = blocks | {"output_dtype": FLOATS[placement.float_type].onnx_type}
    return [*nodes, _tensorrt_node("TRT_MXFP8DequantizeLinear", f"{name}/dq", real, pair, [out])]


def _float4(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, out: gs.Tensor
) -> list[gs.Node]:
    name, blocks = placement.tensor, encoding.spec.granularity.attributes
    nodes: list[gs.Node] = []
    if encoding.global_scale is None:
        assert isinstance(tensor, gs.Constant), "MXFP4 is for weights"
        codes = editor.constant(f"{name}/q", _codes(tensor, encoding))
        scale = editor.constant(f"{name}/scale", encoding.scale)
    else:
        shared = editor.constant(f"{name}/global_scale", np.asarray(encoding.global_scale, np.float32))
        if isinstance(tensor, gs.Constant):
            codes = editor.constant(f"{name}/q", _codes(tensor, encoding))
            small = editor.constant(f"{name}/block_scale", encoding.block_scales)
        else:
            codes, small = _pair(editor, name, tensor, encoding, TensorProto.FLOAT8E4M3FN)
            attrs, pair = blocks | {"scale_type": int(TensorProto.FLOAT8E4M3FN)}, [codes, small]
            nodes = [_tensorrt_node("TRT_FP4DynamicQuantize", f"{name}/q", attrs, [tensor, shared], pair)]
        scale = editor.variable(f"{name}/scale")
        scale.dtype, scale.shape = np.float32, small.shape
        nodes.append(gs.Node("DequantizeLinear", f"{name}/scale", {}, [small, shared], [scale]))
    if placement.float_type == "float32":
        return [*nodes, gs.Node("DequantizeLinear", f"{name}/dq", blocks, [codes, scale], [out])]
    # Scales and results are float32; TensorRT multiplies in float4 if a Cast follows.
    real = editor.variable(f"{name}/dq_float32")
    real.dtype, real.shape = np.float32, out.shape
    product = gs.Node("DequantizeLinear", f"{name}/dq_float32", blocks, [codes, scale], [real])
    cast = gs.Node("Cast", f"{name}/dq", {"to": FLOATS[placement.float_type].onnx_type}, [real], [out])
    return [*nodes, product, cast]


def _codes(tensor: gs.Constant, encoding: Encoding) -> NDArray[Any]:
    spec = encoding.spec
    return quantize(constant_array(tensor), encoding.scale, qtype=spec.qtype, granularity=spec.granularity)


def _pair(
    editor: Editor, name: str, tensor: gs.Tensor, encoding: Encoding, scale_type: int
) -> list[gs.Variable]:
    """Make the outputs of an operator that quantizes `tensor`, placed as `name`: codes, and block scales."""
    spec = encoding.spec
    codes, scales = editor.variable(f"{name}/q"), editor.variable(f"{name}/block_scale")
    codes.dtype, codes.shape = spec.qtype.onnx_type, tensor.shape
    axis, block = spec.granularity.axis, spec.granularity.block_size
    assert axis is not None and block is not None, "other specs have other forms"
    scales.dtype = scale_type
    if tensor.shape is None:  # the plan knows the axis from a run
        return [codes, scales]
    size = tensor.shape[axis] if tensor.shape else None
    if not isinstance(size, int) or size % block:
        raise PlanError(
            f"tensor {name!r}: TensorRT needs blocks of {block} that divide axis {axis}, "
            f"got shape {tensor.shape}; remove the tensor from the plan"
        )
    scales.shape = list(tensor.shape)
    scales.shape[axis] = size // block
    return [codes, scales]


def _tensorrt_node(
    op: str, name: str, attrs: dict[str, Any], inputs: list[gs.Tensor], outputs: list[gs.Tensor]
) -> gs.Node:
    return custom_node(op, name, DOMAIN, attrs=attrs, inputs=inputs, outputs=outputs)


DYNAMIC_RANKS = (2, 3)
"""Ranks that TensorRT's dynamic quantizers of MXFP8 and NVFP4 take: "input tensor must be 2D or 3D"."""


def multiplies_rows(node: gs.Node, slot: int) -> bool:
    """Tell whether `node` multiplies every row of its input `slot` by the same matrix of known width."""
    if node.op != "MatMul" or slot != 0:
        return False
    matrix = node.inputs[1].shape
    return matrix is not None and len(matrix) == 2 and isinstance(matrix[1], int)


def make_rows(editor: Editor, tensor: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]]:
    """Return the matrix of the rows of `tensor`, whose last size is known, and the node that makes it."""
    *front, width = tensor.shape
    rows = editor.variable(f"{tensor.name}/rows", tensor)
    rows.shape = [_count(front, rows.name), width]
    shape = _integers(editor, f"{tensor.name}/rows_shape", [-1, width])
    return rows, [gs.Node("Reshape", rows.name, {}, [tensor, shape], [rows])]


def give_axes_back(editor: Editor, tensor: gs.Tensor, product: gs.Node) -> None:
    """Give the result of `product`, which multiplies the rows of `tensor`, the axes of `tensor`.

    The result keeps its name; `tensor` has a Shape of opset 15 or above.
    """
    out, width = product.outputs[0], product.inputs[1].shape[1]
    rows = editor.variable(f"{out.name}/rows", out)
    rows.shape = [_count(tensor.shape[:-1], rows.name), width]
    product.outputs[0] = rows
    front, shape = editor.variable(f"{out.name}/front"), editor.variable(f"{out.name}/shape")
    for made, count in ((front, len(tensor.shape) - 1), (shape, len(tensor.shape))):
        made.dtype, made.shape = np.int64, [count]
    last = _integers(editor, f"{out.name}/width", [width])
    nodes = [
        gs.Node("Shape", front.name, {"start": 0, "end": -1}, [tensor], [front]),
        gs.Node("Concat", shape.name, {"axis": 0}, [front, last], [shape]),
        gs.Node("Reshape", f"{out.name}/axes", {}, [rows, shape], [out]),
    ]
    editor.insert_after(rows, nodes)


def _count(sizes: list[int | str], name: str) -> int | str:
    """Return the number of rows; `name` for an open one."""
    return name if any(isinstance(size, str) for size in sizes) else prod(sizes)


def _integers(editor: Editor, name: str, values: list[int]) -> gs.Constant:
    return editor.constant(name, np.asarray(values, np.int64))

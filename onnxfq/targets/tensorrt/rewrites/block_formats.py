"""MXFP8 and NVFP4 as TensorRT's parser reads them: its own operators for activations, constants for weights.

    MXFP8  x -> TRT_MXFP8DynamicQuantize -> codes, scales -> TRT_MXFP8DequantizeLinear
           weight: float8 codes and uint8 exponents (bias 127) -> TRT_MXFP8DequantizeLinear
    NVFP4  x, global scale -> TRT_FP4DynamicQuantize -> codes, e4m3 scales; scales, global scale ->
           DequantizeLinear; codes, scales -> DequantizeLinear
           weight: float4 codes, e4m3 scales and the global scale -> the same two DequantizeLinear

Tried on TensorRT for RTX 1.7.1. Its parser refuses e8m0 constants: the exponents are stored as uint8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.errors import PlanError
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.float_types import FLOATS
from onnxfq.passes.custom_domain import TENSORRT_DOMAIN, custom_node, import_domain

_EXPONENT_BIAS = 127


def insert_tensorrt_blocks(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding
) -> None:
    """Put the operators of `encoding`'s format between `tensor` and its placed readers."""
    form = _nvfp4 if encoding.spec.scale_type == "e4m3" else _mxfp8
    dequantized = editor.variable(f"{tensor.name}/dq", tensor)
    if isinstance(tensor, gs.Constant):
        dequantized.dtype, dequantized.shape = tensor.dtype, list(tensor.shape)
    nodes = form(editor, placement, tensor, encoding, dequantized)
    import_domain(editor.graph, TENSORRT_DOMAIN)
    editor.rewire(placement, dequantized)
    editor.insert_before(placement, tensor, nodes)


def _mxfp8(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, out: gs.Tensor
) -> list[gs.Node]:
    blocks = encoding.spec.granularity.attributes
    if isinstance(tensor, gs.Constant):
        exponents = np.frexp(encoding.scale_array)[1] - 1 + _EXPONENT_BIAS
        pair = [
            _constant(editor, f"{tensor.name}/q", _codes(tensor, encoding)),
            _constant(editor, f"{tensor.name}/scale", exponents.astype(np.uint8)),
        ]
        nodes = []
    else:
        pair = _pair(editor, tensor, encoding, TensorProto.UINT8)
        nodes = [
            _tensorrt_node(
                "TRT_MXFP8DynamicQuantize",
                f"{tensor.name}/q",
                blocks | {"output_dtype": encoding.spec.qtype.onnx_type},
                [tensor],
                pair,
            )
        ]
    real = blocks | {"output_dtype": FLOATS[placement.float_type].onnx_type}
    return [*nodes, _tensorrt_node("TRT_MXFP8DequantizeLinear", f"{tensor.name}/dq", real, pair, [out])]


def _nvfp4(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, out: gs.Tensor
) -> list[gs.Node]:
    name, blocks = tensor.name, encoding.spec.granularity.attributes
    shared = _constant(editor, f"{name}/global_scale", np.asarray(encoding.global_scale, np.float32))
    if isinstance(tensor, gs.Constant):
        codes = _constant(editor, f"{name}/q", _codes(tensor, encoding))
        small = _constant(editor, f"{name}/block_scale", encoding.block_scales)
        nodes = []
    else:
        codes, small = _pair(editor, tensor, encoding, TensorProto.FLOAT8E4M3FN)
        kind = {"scale_type": int(TensorProto.FLOAT8E4M3FN)}
        nodes = [
            _tensorrt_node(
                "TRT_FP4DynamicQuantize", f"{name}/q", blocks | kind, [tensor, shared], [codes, small]
            )
        ]
    scale = editor.variable(f"{name}/scale")
    scale.dtype, scale.shape = np.float32, small.shape
    nodes.append(gs.Node("DequantizeLinear", f"{name}/scale", {}, [small, shared], [scale]))
    if placement.float_type == "float32":
        return [*nodes, gs.Node("DequantizeLinear", f"{name}/dq", blocks, [codes, scale], [out])]
    # The scales are float32 and so are the numbers; the Cast is the form that TensorRT multiplies in float4.
    real = editor.variable(f"{name}/dq_float32")
    real.dtype, real.shape = np.float32, out.shape
    return [
        *nodes,
        gs.Node("DequantizeLinear", f"{name}/dq_float32", blocks, [codes, scale], [real]),
        gs.Node("Cast", f"{name}/dq", {"to": FLOATS[placement.float_type].onnx_type}, [real], [out]),
    ]


def _codes(tensor: gs.Constant, encoding: Encoding) -> NDArray[Any]:
    spec = encoding.spec
    return quantize(
        constant_array(tensor), encoding.scale_array, qtype=spec.qtype, granularity=spec.granularity
    )


def _constant(editor: Editor, name: str, values: NDArray[Any]) -> gs.Constant:
    return editor.constant(name, lambda free: make_constant(free, values))


def _pair(editor: Editor, tensor: gs.Tensor, encoding: Encoding, scale_type: int) -> list[gs.Variable]:
    """Make the outputs of an operator that quantizes `tensor`: codes, and the scales of the blocks."""
    spec = encoding.spec
    codes, scales = editor.variable(f"{tensor.name}/q"), editor.variable(f"{tensor.name}/block_scale")
    codes.dtype, codes.shape = spec.qtype.onnx_type, tensor.shape
    axis, block = spec.granularity.axis, spec.granularity.block_size
    assert axis is not None and block is not None, "other specs have other forms"
    size = tensor.shape[axis] if tensor.shape else None
    if not isinstance(size, int) or size % block:
        raise PlanError(
            f"tensor {tensor.name!r}: TensorRT needs blocks of {block} that divide axis {axis}, "
            f"got shape {tensor.shape}; remove the tensor from the plan"
        )
    scales.dtype, scales.shape = scale_type, list(tensor.shape)
    scales.shape[axis] = size // block
    return [codes, scales]


def _tensorrt_node(
    op: str, name: str, attrs: dict[str, Any], inputs: list[gs.Tensor], outputs: list[gs.Tensor]
) -> gs.Node:
    return custom_node(op, name, TENSORRT_DOMAIN, attrs=attrs, inputs=inputs, outputs=outputs)

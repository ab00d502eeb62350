"""TensorRT 10 and 11 with explicit quantization: limits of parser and fusions.

The rules are NVIDIA's documented ones (explicit quantization; IQuantizeLayer and IDequantizeLayer in
NvInfer.h), tried on TensorRT for RTX 1.7.1, whose parser and builder need no GPU. Limits of weight-only
products (one-row int8, odd sizes, stacks of matrices) were measured on TensorRT for RTX 1.7.1 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.graph.ops import STANDARD_DOMAINS, find_summed_axis
from onnxfq.graph.queries import weight_source
from onnxfq.numerics.float_types import BLOCK_FORMATS, block_format_name
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import QType
from onnxfq.placement.pass_through_ops import ONE_SCALE
from onnxfq.placement.target_policy import Operands, TargetPolicy
from onnxfq.targets.reading.limits import explain, stored_type
from onnxfq.targets.tensorrt.attention import decide_attentions, join_pairs
from onnxfq.targets.tensorrt.limits import (
    ALONE,
    BLOCKED,
    BOTH_SIDES,
    EXPANDED,
    FLOAT8_WINDOW,
    MIXED_TYPES,
    ONE_PER_TENSOR,
    TWO_COMPUTED,
    ZERO_POINTS,
    explain_int4,
    explain_one_block,
    explain_one_row,
    explain_right_side,
    suggest_block,
)
from onnxfq.targets.tensorrt.rewrites.block_formats import DYNAMIC_RANKS, WEIGHTS_ALONE, multiplies_rows

_MULTIPLIED = ("MatMul", "Gemm")


def _refuses(placement: Placement, operands: Operands) -> str:
    spec = placement.spec
    base = stored_type(placement)
    if spec.dynamic or spec.scale_type != "float32":
        return _refuses_derived_scales(placement, operands)
    if not spec.symmetric:
        return ZERO_POINTS
    if base == "int4" and not operands.weight_only:
        return "TensorRT takes int4 only for weights whose activations stay float; use int8"
    if base not in (*BOTH_SIDES, "int4"):
        nearest = "float8e4m3fn" if spec.qtype.is_float else "int8"
        carried = "" if base == spec.qtype.base else f", which {spec.qtype} needs"
        return f"TensorRT has no {base} tensors{carried}; use {nearest}"
    if placement.role == "activation" and spec.granularity != PER_TENSOR:
        return f"{ONE_PER_TENSOR}, or target onnxruntime"
    if spec.granularity.block_shape is not None:
        return "TensorRT takes blocks along one axis only; use per_axis, or target onnxruntime"
    # A type that TensorRT takes nowhere, or not here, is refused for the tensor that has it.
    made = [other.spec for other in operands.placements if other.spec.scale_type != "float32"]
    if made:
        return f"TensorRT multiplies two tensors of one format only, not {base} and {made[0]}; use one"
    return explain((MIXED_TYPES, EXPANDED, BLOCKED), placement, operands)


def _refuses_derived_scales(placement: Placement, operands: Operands) -> str:
    """Return why TensorRT does not support these scales; it supports derived ones of MXFP8 and NVFP4."""
    spec = placement.spec
    remedy = "use recipe tensorrt-mxfp8 or tensorrt-nvfp4"
    if spec.scale_type == "float32":
        return f"TensorRT has no DynamicQuantizeLinear; use dynamic: false, or {remedy.removeprefix('use ')}"
    name = block_format_name(spec.qtype, spec.scale_type)
    block = BLOCK_FORMATS[name].block_size if name else None
    # A convolution, without a single summed axis, stays in float.
    other_blocks = operands.node.op in _MULTIPLIED and spec.granularity.block_size != block
    if not name or other_blocks or (name == WEIGHTS_ALONE and not operands.weight_only):
        return (
            f"TensorRT has no {spec.qtype} {spec.granularity} with {spec.scale_type} scales; {remedy}, or "
            "target simulation"
        )
    return ""


def _keeps_float(operands: Operands) -> str:
    for placement in operands.placements:
        why = _blocks_in_float(placement, operands)
        if why:
            return why
        shape = operands.weight_shapes.get(placement.tensor)
        if shape is None:
            continue
        why, base = explain((ALONE, FLOAT8_WINDOW), placement, operands), stored_type(placement)
        if not why and base == "int4":
            why = _int4_in_float(placement, shape)
        if not why and operands.weight_only and base in ("int4", "int8"):
            why = _alone_in_float(operands, placement, base)
        if why:
            return why
    return ""


def _alone_in_float(operands: Operands, placement: Placement, base: str) -> str:
    """Return why weights of 4 or 8 bits would become float next to float activations; empty if they stay.

    Measured one by one on TensorRT for RTX 1.7.1.
    """
    node, first = operands.node, weight_source(operands.node, 0)
    if first is not None and first.tensor.name == placement.tensor:
        left = node.inputs[0].shape
        k = _sizes(node, 0, left if left is not None else operands.weight_shapes[placement.tensor])[0]
        if base == "int4":
            return "TensorRT's builder aborts on an int4 left-hand operand"
        return _ODD.format(f"{k} to sum over") if k % 2 else ""
    if node.op not in _MULTIPLIED:
        return ""
    rows, matrix = (tensor.shape for tensor in node.inputs[:2])
    # The weight may pass a Transpose: this is its shape at the node.
    shape = matrix if matrix is not None else operands.weight_shapes[placement.tensor]
    if prod(shape[:-2]) > 1 and (rows is None or list(rows[:-2]) != list(shape[:-2])):
        return "TensorRT expands a stack of matrices to float if each one multiplies the whole input"
    k, n = _sizes(node, 1, shape)
    if rows is not None and all(size == 1 for size in rows[:-1]):
        return explain_one_row(k, n) if base == "int8" and len(shape) == 2 else ""
    if n % 2 and (base == "int4" or n > 1):
        return _ODD.format(f"{n} columns")
    return _ODD.format(f"{k} to sum over") if base == "int8" and k % 2 and n > 1 else ""


_ODD = "TensorRT multiplies in float if only the weight has few bits and one of its sizes is odd: {}"


def _sizes(node: gs.Node, slot: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return (summed size, other size) of the matrix of `shape` at `slot`."""
    summed = find_summed_axis(node, slot, len(shape))
    if summed is None:  # an Einsum over several axes
        return 0, 0
    return shape[summed], prod(shape[-2:]) // max(shape[summed], 1)


def _blocks_in_float(placement: Placement, operands: Operands) -> str:
    """Return why TensorRT would not multiply in MXFP8 or NVFP4; empty if it would, or for other formats."""
    spec, shape = placement.spec, operands.shape(placement)
    name = block_format_name(spec.qtype, spec.scale_type)
    if not name:
        return ""
    if operands.node.op not in _MULTIPLIED:
        return f"TensorRT has {name} for MatMul and Gemm only"
    axis, block = spec.granularity.axis, spec.granularity.block_size
    assert axis is not None and block is not None, "specs without blocks are refused"
    why = "" if shape is None else _explain_axes(placement, operands, name, shape)
    if why:
        return why
    size = None if shape is None else shape[axis]
    rule = f"TensorRT needs {name} blocks that divide the summed axis"
    if not isinstance(size, int):
        return f"{rule}, and the summed axis of {placement.tensor!r} is open"
    if size % block:
        return f"{rule}: {size} is not a multiple of {block}"
    assert shape is not None, "a size is known"
    return explain_one_block(name, shape, size == block, placement.role == "weight")


def _explain_axes(placement: Placement, operands: Operands, name: str, shape: Sequence[int | str]) -> str:
    """Return why TensorRT has no product of these axes in MXFP8 or NVFP4; empty if it has.

    Its dynamic quantizers take 2-D and 3-D tensors only; a tensor of more axes can be multiplied as a matrix
    of its rows (`block_formats`). Tried on TensorRT for RTX 1.7.1: a product of two computed tensors runs in
    float in MXFP8, and in NVFP4 none is built whose right-hand tensor has an open size.
    """
    if placement.role == "weight":
        return (
            f"TensorRT has no {name} vectors: {placement.tensor!r}" if len(shape) < DYNAMIC_RANKS[0] else ""
        )
    slot = placement.uses[0].input
    if name == "MXFP8" and all(other.role == "activation" for other in operands.placements):
        return TWO_COMPUTED
    if name == "NVFP4" and slot == 1 and explain_right_side(shape):
        return explain_right_side(shape)
    has_rows = len(shape) > DYNAMIC_RANKS[-1] and multiplies_rows(operands.node, slot)
    if len(shape) in DYNAMIC_RANKS or has_rows:
        return ""
    return f"TensorRT has {name} for 2-D and 3-D tensors, and {placement.tensor!r} is {len(shape)}-D"


def _int4_in_float(placement: Placement, shape: tuple[int, ...]) -> str:
    """Return why TensorRT would not keep an int4 weight; it reads the block size from shapes, K / scales."""
    axis, block = placement.spec.granularity.axis, placement.spec.granularity.block_size
    if axis is None or block is None:
        return explain_int4(shape, None, 0)
    if axis < len(shape) - 2:
        return f"TensorRT takes blocks along the last two axes only, not axis {axis} of {len(shape)}"
    if shape[axis] % block:
        rule = f"{shape[axis]} is not a multiple of {block}"
        return f"TensorRT needs blocks that divide the summed axis: {rule}{suggest_block(shape[axis])}"
    return explain_int4(shape, axis, block)


def _is_bridge(node: gs.Node, qtype: QType) -> bool:
    """Tell whether `node` runs in low precision between pairs of `qtype`; poolings do in int8 only.

    Measured on TensorRT for RTX 1.7.1. An AveragePool needs the same padding on both sides, or
    count_include_pad.
    """
    if node.domain not in STANDARD_DOMAINS or (qtype.is_float and node.op != "Concat"):
        return False
    if node.op != "AveragePool":
        return node.op in ONE_SCALE
    attrs = node.attrs
    if attrs.get("auto_pad", "NOTSET") != "NOTSET" or attrs.get("ceil_mode", 0):
        return False
    pads = list(attrs.get("pads", ()))
    half = len(pads) // 2
    return pads[:half] == pads[half:] and (any(pads) or bool(attrs.get("count_include_pad", 0)))


POLICY = TargetPolicy(
    # NVIDIA staff named axis 0 in 2022, ModelOpt uses axis 1: one scale is right under both.
    per_tensor_weights={"ConvTranspose": "per tensor: TensorRT releases disagree on the channel axis"},
    conv_transpose=(
        "TensorRT for RTX runs every ConvTranspose in float, where pairs only add noise; for another "
        "TensorRT set conv_transpose: quantize in the recipe"
    ),
    # Without a pair on the skip branch the Add runs in float and cannot fuse into its Conv.
    residual=True,
    bias="bias: TensorRT refuses a quantized bias and adds it in float",
    refuses=_refuses,
    keeps_float=_keeps_float,
    whole_attention="TensorRT fuses all of an attention or none",
    revise=decide_attentions,
    join=join_pairs,
    bridges=_is_bridge,
)

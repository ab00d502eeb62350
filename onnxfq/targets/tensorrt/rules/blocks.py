"""Rules about block scales, and about int4, which TensorRT supports in blocks only."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnx import TensorProto

from onnxfq.graph.ops import CONVOLUTIONS, channel_axis
from onnxfq.targets.findings import Finding, Severity
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.limits import check_limits
from onnxfq.targets.reading.operands import ExpectedPrecision, QuantizedOperand, one_row_sizes
from onnxfq.targets.reading.quantizer_reader import Quantizer
from onnxfq.targets.tensorrt.limits import BLOCKED, EXPANDED, explain_int4, keeps_one_row_int4

# Operators allowed between an int4 weight and its reader; behind others the weight is expanded.
_INT4_PATH = frozenset({"Identity", "Transpose", "Unsqueeze"})
INT4_BLOCKS = (64, 128)
"""Sizes of int4 blocks that NVIDIA documents for TensorRT (explicit quantization)."""
_NARROW = (TensorProto.INT4, TensorProto.FLOAT4E2M1)


def block_axes(reading: CheckContext) -> Iterator[Finding]:
    """Refuse blocks along an axis before the last two, such as the channels of a convolution.

    Source: NvInfer.h, IQuantizeLayer; builder: "must be the last or second to last dimension".
    """
    for q in reading.quantizers:
        axis = block_axis(q)
        if axis is not None and q.shape is not None and axis < len(q.shape) - 2:
            message = (
                f"{q.data!r} has blocks along axis {axis} of {len(q.shape)}, and TensorRT takes the last two "
                "axes only; use per_axis"
            )
            yield make_finding("block-axis", "refused", q.site, message, q.data)


def block_sizes(reading: CheckContext) -> Iterator[Finding]:
    """Report blocks whose size does not divide their axis: TensorRT reads the size from shapes.

    Source: onnx-tensorrt, QuantDequantLinearHelper: size of the axis divided by the number of scales;
    the attribute block_size is ignored. The parser refuses a quotient with a remainder: "The quantization
    axis must divide into whole blocks".
    """
    for q in reading.quantizers:
        axis = block_axis(q)
        if axis is None or not q.block or q.shape is None or q.scale_shape is None:
            continue
        length, scales = q.shape[axis], q.scale_shape[axis]
        if length is None or not scales or length == q.block * scales or scales == 1:
            continue
        message = (
            f"{q.data!r} has {length} numbers in blocks of {q.block} along axis {axis}, and TensorRT "
            f"computes with {length} / {scales} = {length / scales:g}; pad to a multiple"
        )
        severity: Severity = "refused" if length % scales else "wrong"
        yield make_finding("block-size", severity, q.site, message, q.data)


def blocks_on_both_sides(reading: CheckContext) -> Iterator[Finding]:
    """Report products of two tensors in static int8 or float8 blocks: TensorRT scales after the product.

    Source: the engine of TensorRT for RTX 1.7.1 has one gemm over the whole summed axis. A scale that varies
    along this axis cannot be applied after it.
    """
    for promised in reading.promises:
        pairs = [q for q in promised.pairs if q.is_blocked]
        if len(pairs) == 2 and all(q.qtype not in _NARROW and "MXFP8" not in q.site.op for q in pairs):
            message = (
                f"both {pairs[0].data!r} and {pairs[1].data!r} have scales in blocks along the summed axis, "
                "and TensorRT multiplies over the whole axis first; use per_axis"
            )
            yield make_finding("blocks-both-sides", "wrong", promised.site, message)


def even_counts(reading: CheckContext) -> Iterator[Finding]:
    """Refuse an odd number of 4-bit numbers: two share a byte.

    Source: parser, "4-bit quantization requires an even number of elements".
    """
    for q in reading.quantizers:
        count = _count(q)
        if not q.quantizes and q.qtype in _NARROW and count is not None and count % 2:
            message = f"{q.data!r} has {count} numbers of 4 bits, and TensorRT needs an even count; pad it"
            yield make_finding("odd-int4", "refused", q.site, message, q.data)


def _count(q: Quantizer) -> int | None:
    return prod(size or 0 for size in q.shape) if q.shape and None not in q.shape else None


def int4_activations(reading: CheckContext) -> Iterator[Finding]:
    """Report int4 activations: int4 is for weights (NvInfer.h); in blocks their product is weight-only."""
    for promised, _, q in reading.activations():
        if q.qtype == TensorProto.INT4:
            message = f"activation {q.data!r} is int4, which TensorRT documents for weights only; use int8"
            severity: Severity = "float" if q.is_blocked else "warning"
            yield make_finding("int4-activation", severity, promised.site, message, q.data)


def int4_weights(reading: CheckContext) -> Iterator[Finding]:
    """Report int4 weights that TensorRT expands to float: fewer than two blocks, or no direct reader.

    Source: TensorRT for RTX 1.7.1; NVIDIA's documentation has int4 for weights in blocks alone. With one row
    a small weight stays int4 in any blocks, or in none.
    """
    for promised, weight, q in reading.weights():
        alone = promised.expects == "weight-only" and promised.site.op not in CONVOLUTIONS
        if not alone or q.qtype != TensorProto.INT4 or (_count(q) or 0) % 2:
            continue
        axis, block = block_axis(q), _block_of(q)
        if weight.slot == 0 and axis is not None:
            message = f"int4 weight {q.data!r} is the left operand, and TensorRT's builder aborts; swap them"
            yield make_finding("int4-weight", "refused", promised.site, message, q.data)
            continue
        why = explain_int4(q.shape or (), axis, block) if axis is None or q.shape else ""
        row = one_row_sizes(promised)
        whole = axis is None or (q.shape is not None and q.shape[axis] == block)
        if whole and row is not None and keeps_one_row_int4(*row):
            why = ""
        between = next((site for site in weight.path if site.op not in _INT4_PATH), None)
        if not why and between is not None:
            why = (
                f"it goes through {between.op} {between.name!r}; use only Transpose behind its DQ, and "
                "scales in the model's float type"
            )
        if why:
            message = f"int4 weight {q.data!r} becomes float: {why}"
            yield make_finding("int4-weight", "float", promised.site, message, q.data)
        elif axis is not None and _is_along_outputs(promised, weight, axis):
            message = (
                f"int4 weight {q.data!r} has blocks along its output axis; TensorRT documents the summed "
                "axis; block that one"
            )
            yield make_finding("int4-axis", "warning", promised.site, message, q.data)
        elif block not in INT4_BLOCKS:
            found = f"blocks of {block}" if block else "no blocks"
            message = (
                f"int4 weight {q.data!r} has {found}: TensorRT for RTX takes that, and TensorRT documents "
                f"blocks of {' and '.join(map(str, INT4_BLOCKS))} only; use one of these for other releases"
            )
            yield make_finding("int4-block", "warning", promised.site, message, q.data)


def _block_of(q: Quantizer) -> int:
    """Return the numbers in a block of `q`; 0 without blocks or if unknown."""
    axis = block_axis(q)
    if axis is None or not q.shape or not q.scale_shape:
        return 0
    # One scale is one block, whatever block_size says.
    if q.scale_shape[axis] == 1:
        return q.shape[axis] or 0
    return q.block or (q.shape[axis] or 0) // (q.scale_shape[axis] or 1)


def block_axis(q: Quantizer) -> int | None:
    """Return the axis of the blocks of `q`; None without blocks."""
    if not q.is_blocked or q.scale_shape is None:
        return None
    if q.block:
        axis = int(q.site.attrs.get("axis", 1))
        return axis + len(q.scale_shape) if axis < 0 else axis
    if q.shape is None or len(q.shape) != len(q.scale_shape):
        return None
    return next(
        (a for a, pair in enumerate(zip(q.shape, q.scale_shape, strict=True)) if pair[0] != pair[1]), None
    )


def _is_along_outputs(promised: ExpectedPrecision, weight: QuantizedOperand, axis: int) -> bool:
    """Tell whether `axis` of the quantized weight is the channel axis of the node's second input."""
    seen = weight.axis(axis)
    if seen is None or weight.slot != 1 or weight.pair is None or weight.pair.shape is None:
        return False
    return seen == channel_axis(promised.site, 1, len(weight.pair.shape))


RULES: tuple[Rule, ...] = (
    block_axes,
    block_sizes,
    blocks_on_both_sides,
    check_limits(BLOCKED, EXPANDED),
    even_counts,
    int4_activations,
    int4_weights,
)

"""Rules about float4 and MXFP8: TensorRT multiplies float4 only as NVFP4, NVIDIA's two-level form."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnx import TensorProto

from onnxfq.numerics.float_types import BLOCK_FORMATS
from onnxfq.targets.findings import Finding, Severity
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.operands import QuantizedOperand
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS
from onnxfq.targets.tensorrt.limits import TWO_COMPUTED, explain_one_block, explain_right_side
from onnxfq.targets.tensorrt.rewrites.block_formats import DYNAMIC_RANKS

_NVFP4_BLOCK = BLOCK_FORMATS["NVFP4"].block_size
_BLOCKS = {
    "TRT_FP4DynamicQuantize": _NVFP4_BLOCK,
    "TRT_MXFP8DynamicQuantize": BLOCK_FORMATS["MXFP8"].block_size,
}


def dynamic_blocks(reading: CheckContext) -> Iterator[Finding]:
    """Refuse dynamic quantization in blocks other than 16 (float4) and 32 (MXFP8).

    Source: NVIDIA/TensorRT operator reference, DynamicQuantize; parser: "Only block_size == 16".
    """
    for site in reading.sites:
        wanted = _BLOCKS.get(site.op)
        block = int(site.attrs.get("block_size", wanted or 0))
        if wanted is not None and block != wanted:
            message = f"block_size is {block}, and TensorRT has {wanted} for {site.op} only; use {wanted}"
            yield make_finding("dynamic-block", "refused", site, message)


def dynamic_ranks(reading: CheckContext) -> Iterator[Finding]:
    """Refuse dynamic quantization of tensors that are not 2-D or 3-D. Parser: "must be 2D or 3D"."""
    for site in reading.sites:
        shape = site.index.shape(site.input(0)) if site.op in _BLOCKS else None
        if shape is not None and len(shape) not in DYNAMIC_RANKS:
            message = (
                f"{site.input(0)!r} has {len(shape)} axes, and TensorRT has {site.op} for 2 and 3; multiply "
                "its rows as a matrix, or leave it in float"
            )
            yield make_finding("dynamic-rank", "refused", site, message, site.input(0))


def open_right_sides(reading: CheckContext) -> Iterator[Finding]:
    """Refuse NVFP4 products whose right-hand tensor is computed and has open sizes.

    Measured on TensorRT for RTX 1.7.1, whose builder ends with a failed check. Open left-hand ones are built.
    """
    for promised, right, q in reading.activations():
        source = q.site.index.maker(q.data)
        if right.slot != 1 or source is None or source.op != "TRT_FP4DynamicQuantize":
            continue
        name = source.input(0)
        why = explain_right_side(source.index.shape(name))
        if why:
            message = (
                f"its right-hand side {name!r} is computed: {why}; fix its sizes, or leave this node in float"
            )
            yield make_finding("float4-open", "refused", promised.site, message, name)


def one_blocks(reading: CheckContext) -> Iterator[Finding]:
    """Report products of fixed sizes with one block of MXFP8 or NVFP4 along the summed axis.

    Measured on TensorRT for RTX 1.7.1: NVFP4 runs in float, and MXFP8 and a tensor of one block do not build.
    """
    for promised in reading.promises:
        found = [message for operand in promised.operands for message in _explain_one_block(operand)]
        for severity, message, tensor in found[:1]:
            yield make_finding("one-block", severity, promised.site, message, tensor)


def _explain_one_block(operand: QuantizedOperand) -> Iterator[tuple[Severity, str, str]]:
    q = operand.pair
    name = "MXFP8" if q is not None and "MXFP8" in q.site.op else "NVFP4"
    if q is None or not q.block or (name == "NVFP4" and q.qtype != TensorProto.FLOAT4E2M1):
        return
    maker = q.site.index.maker(q.data)
    tensor = maker.input(0) if maker is not None and maker.op in _BLOCKS else q.data
    shape, axis = q.site.index.shape(tensor) or (), int(q.site.attrs.get("axis", 1))
    is_one = -len(shape) <= axis < len(shape) and shape[axis] == q.block
    why = explain_one_block(name, shape, is_one, operand.constant)
    if why:
        whole = prod(size or 0 for size in shape) == q.block
        severity: Severity = "refused" if whole or name == "MXFP8" else "float"
        yield severity, f"{why}: {tensor!r} has shape {list(shape)}; leave this node in float", tensor


def mxfp8_products(reading: CheckContext) -> Iterator[Finding]:
    """Report MXFP8 products of two computed tensors, which TensorRT for RTX 1.7.1 runs in float."""
    for promised in reading.promises:
        pairs = [o.pair for o in promised.activations if o.pair is not None]
        if len(pairs) == 2 and all("MXFP8" in q.site.op for q in pairs):
            message = f"{TWO_COMPUTED}; leave them in float"
            yield make_finding("mxfp8-product", "float", promised.site, message)


def float4_products(reading: CheckContext) -> Iterator[Finding]:
    """Report products with a float4 input that TensorRT expands to float, or does not build.

    It builds no static pair of an activation.
    TensorRT keeps weights in blocks of 16 if their float8 scales come from a DequantizeLinear, and
    activations from TRT_FP4DynamicQuantize (TensorRT for RTX 1.7.1; ModelOpt, nvfp4_exporter.py).
    """
    for promised in reading.promises:
        if not any(q.qtype == TensorProto.FLOAT4E2M1 for q in promised.pairs):
            continue
        why = next(filter(None, (_explain_float4(operand) for operand in promised.operands)), "")
        static = any(_is_static(operand) for operand in promised.operands)
        if promised.expects == "weight-only":
            why = "its weight alone is float4, which saves memory and no time"
        if why:
            message = f"{why}, and TensorRT expands float4 before it multiplies; write both sides as NVFP4"
            yield make_finding("float4", "refused" if static else "float", promised.site, message)


def _is_static(operand: QuantizedOperand) -> bool:
    """Tell whether a QuantizeLinear makes the float4 numbers."""
    maker = None if operand.pair is None else operand.pair.site.index.maker(operand.pair.data)
    float4 = operand.pair is not None and operand.pair.qtype == TensorProto.FLOAT4E2M1
    return float4 and not operand.constant and maker is not None and maker.op == "QuantizeLinear"


def _explain_float4(operand: QuantizedOperand) -> str:
    q = operand.pair
    if q is None or q.qtype != TensorProto.FLOAT4E2M1:
        return f"{operand.tensor!r} is not float4"
    if q.block != _NVFP4_BLOCK:
        return f"{q.data!r} is not in blocks of {_NVFP4_BLOCK}"
    maker = q.site.index.maker(q.site.input(1))
    if maker is None or maker.op not in DEQUANTIZE_OPS:
        return f"the scales of {q.data!r} are not dequantized from float8"
    source = q.site.index.maker(q.data)
    if not operand.constant and (source is None or source.op != "TRT_FP4DynamicQuantize"):
        return f"{q.data!r} is not from TRT_FP4DynamicQuantize"
    return ""


RULES: tuple[Rule, ...] = (
    dynamic_blocks,
    dynamic_ranks,
    open_right_sides,
    one_blocks,
    mxfp8_products,
    float4_products,
)

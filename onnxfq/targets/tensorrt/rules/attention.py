"""Rules about fused attention.

Measured on TensorRT for RTX 1.7.1. Placement uses the same patterns and limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import TensorProto

from onnxfq.graph.follow import Node, passes_through, readers_behind
from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.graph.patterns.attention import (
    PRODUCTS,
    Attention,
    AttentionForm,
    makers_of,
    match_attention,
    match_projection,
)
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.operands import QuantizedOperand, operand
from onnxfq.targets.reading.quantizer_reader import QUANTIZE_OPS
from onnxfq.targets.tensorrt.attention import MOVES_BEHIND
from onnxfq.targets.tensorrt.limits import ONE_QUERY, exceed_limit, is_one_query, needs_least_keys

_HALVES = tuple(half.onnx_type for half in HALF_TYPES.values())
# Pairs instead of guards: TensorRT for RTX 1.7.1 does not fuse with a guard between the products.
_QUANTIZED_FORM: AttentionForm[NodeSite] = AttentionForm(
    makers_of, behind={*QUANTIZE_OPS, "Cast", "Dropout", "Identity"}
)


def attention_operators(reading: CheckContext) -> Iterator[Finding]:
    """Report quantized Attention operators: TensorRT fuses them in half types, so pairs only add rounding."""
    for promised in reading.promises:
        site = promised.site
        if site.op == "Attention" and site.index.dtype(site.outputs[0].name) in _HALVES:
            message = (
                "its inputs are quantized, and TensorRT runs ONNX's Attention in float; write it as MatMul, "
                "Softmax, MatMul before quantizing"
            )
            yield make_finding("attention-operator", "float", site, message)


def attentions(reading: CheckContext) -> Iterator[Finding]:
    """Warn of quantized multi-head attention that runs in separate kernels.

    Source: NVIDIA, fused attention: pairs on queries, keys, the Softmax and values; for int8 a quantized
    reader too, heads of 16, 32 or 64 and up to 512 tokens; for float8 heads of up to 256, and by measurement
    32 keys.
    """
    for found, operands in _attentions(reading):
        shape = found.scores.inputs[0].shape
        if all(o.pair is None for o in operands) or shape is None or len(shape) != 4:
            continue
        why = _explain_unfused(found, operands, shape[-1], shape[-2])
        if why:
            message = f"its attention, up to {found.mix.name!r}, is not fused: {why}"
            yield make_finding("attention", "warning", found.scores, message)


def projections(reading: CheckContext) -> Iterator[Finding]:
    """Report weight-only products behind a fused attention of one sample: their weight becomes float first.

    Measured on TensorRT for RTX 1.7.1: it happens in float16 with a batch fixed at 1, for int4 and int8. It
    does not happen with a batch of 2 or an open one, nor in float32, where attention is not fused.
    """
    weight_only = {p.site.name: p for p in reading.promises if p.expects == "weight-only"}
    for found, operands in _attentions(reading):
        output = found.mix.outputs[0]
        shape = found.scores.inputs[0].shape
        fused = output.index.dtype(output.name) in _HALVES and all(o.pair is None for o in operands)
        if not fused or shape is None or len(shape) != 4 or shape[0] != 1 or shape[2] == 1:
            continue
        for site in readers_behind(output, MOVES_BEHIND):
            if site.name in weight_only:
                message = (
                    f"its weight, behind the attention of {found.mix.name!r} with a batch fixed at 1, "
                    "becomes float before each run; use an open batch, or leave it in float"
                )
                yield make_finding("attention-projection", "float", site, message)


def parts(reading: CheckContext) -> Iterator[Finding]:
    """Warn of products whose parts, read by attention, have a pair each: their weight becomes float.

    Measured on TensorRT for RTX 1.7.1, where a few ways to write the split keep it low: hence a warning.
    """
    pairs = [one.pair for _, operands in _attentions(reading) for one in operands if one.pair is not None]
    takers = {id(maker) for pair in pairs for maker in pair.site.inputs[0].inputs if maker.op in QUANTIZE_OPS}
    outputs = {id(reading.index.tensor(name)) for name in reading.index.outputs}
    for promised in reading.promises:
        site = promised.site
        if site.op not in ("MatMul", "Gemm") or promised.expects != "low" or promised.weight is None:
            continue
        found = match_projection(site, lambda tensor: tensor.index.is_constant(tensor.name), _passes)
        several = len({part.reader.name for part in found.parts}) > 1
        if several and found.is_read_by(takers) and not outputs.intersection(map(id, found.carried)):
            message = (
                "its parts, which attention reads, have a pair each, so TensorRT makes its weight float; put "
                "one pair behind it and its bias instead"
            )
            yield make_finding("attention-parts", "warning", site, message)


def _passes(node: Node, slot: int, whole: bool) -> bool:
    """Tell whether `node` moves, splits or scales; a factor in front of the split counts."""
    return passes_through(node, slot, False, lambda tensor: tensor.index.is_number(tensor.name))


def _explain_unfused(
    found: Attention[NodeSite], operands: Sequence[QuantizedOperand], head: int | None, tokens: int | None
) -> str:
    bare = [o.tensor for o in operands if o.pair is None]
    halves = [{o.pair is None for o in operands[i : i + 2]} for i in (0, 2)]
    if any(len(half) > 1 for half in halves):
        return ""  # a product with one side in float: placement.check_one_side reports it
    if bare:
        return f"{', '.join(map(repr, bare))} stays in float; quantize all four inputs or none"
    is_float8 = any(o.pair is not None and o.pair.qtype == TensorProto.FLOAT8E4M3FN for o in operands)
    columns = found.scores.inputs[1].shape
    if is_one_query(found.scores):
        return f"{ONE_QUERY}; leave it in float"
    keys = columns[-1] if columns else None
    limit = exceed_limit(is_float8, head, tokens, keys)
    if limit and is_float8:
        return f"float8 kernels have {limit}; leave it in float"
    if is_float8 and columns:
        return needs_least_keys(is_float8, keys)
    if limit:
        return f"int8 kernels have {limit}; use float8"
    # Fully masked rows are replaced by 0 after the second product.
    readers = readers_behind(found.mix.outputs[0], {*MOVES_BEHIND, "Where"})
    if not is_float8 and not any(site.op in QUANTIZE_OPS for site in readers):
        return "int8 kernels have an int8 result; put a pair in front of what reads it"
    return ""


def _attentions(reading: CheckContext) -> Iterator[tuple[Attention[NodeSite], tuple[QuantizedOperand, ...]]]:
    """Yield every attention with both operands of its scores and of its mix."""
    for mix in reading.sites:
        if mix.op not in PRODUCTS:
            continue
        weights = operand(mix, 0)
        found = match_attention(mix, _QUANTIZED_FORM, None if weights.pair is None else weights.pair.site)
        if found is not None:
            scores = found.scores
            yield found, (operand(scores, 0), operand(scores, 1), weights, operand(mix, 1))


RULES: tuple[Rule, ...] = (attention_operators, attentions, projections, parts)

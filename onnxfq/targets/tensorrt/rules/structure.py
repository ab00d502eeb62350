"""Rules about operators, node names, bodies and residual sums."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxfq.graph.model import bodies
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, QUANTIZED_OPS
from onnxfq.quantized.qonnx import is_quantizer
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.general_rules import check_quantized
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS, QUANTIZE_OPS, Quantizer
from onnxfq.targets.tensorrt.rules.classic import CLASSIC_ALONE, ON_CLASSIC

UNSUPPORTED = frozenset(
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im "
    "Compress ConcatFromSequence ConvInteger CumProd DFT DeformConv Det DynamicQuantizeLinear ImageDecoder "
    "MatMulInteger MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional "
    "OptionalGetElement OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt "
    "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
    "SoftmaxCrossEntropyLoss SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU "
    "TfIdfVectorizer Unique".split()
)
"""ONNX operators that the parser of TensorRT for RTX 1.7.1 reports as unsupported."""
EXTRA = frozenset(
    "GroupQueryAttention MultiHeadAttention QMoE SkipSimplifiedLayerNormalization TRT_Attention "
    "TRT_BlockDequantize TRT_BlockQuantize TRT_DynamicQuantize TRT_FP4DynamicQuantize "
    "TRT_FP8DequantizeLinear TRT_FP8QuantizeLinear TRT_INT4DequantizeLinear TRT_INT4QuantizeLinear "
    "TRT_KVCacheUpdate TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize TRT_MXFP8QuantizeLinear TRT_MoE "
    "TRT_QuantizedAttention".split()
)
"""Operators that this parser adds, in any domain. It lists MatMulNBits too, but cannot load it."""
STANDARD = frozenset(s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain in ("", "ai.onnx"))
"""All ONNX operators: the parser ignores domains, so these names always mean them."""


def operators(reading: CheckContext) -> Iterator[Finding]:
    """Refuse operators that the parser lacks; custom plugins are not searched.

    Source: OnnxParser.supports_operator of TensorRT for RTX 1.7.1, which the tests compare.
    """
    for site in reading.sites:
        if site.op in (STANDARD - UNSUPPORTED) | EXTRA or is_quantizer(site.node):
            continue
        if site.op in FAKE_QUANTIZE_OPS:
            remedy = "run `onnxfq convert`, or quantize with a recipe for TensorRT; both write Q/DQ"
        elif site.op in QUANTIZED_OPS:
            remedy = "quantize with QuantizeLinear and DequantizeLinear, symmetric"
        elif site.op in CLASSIC_ALONE:
            remedy = ON_CLASSIC
        else:
            remedy = "rewrite it in ONNX operators, or load a plugin of this name"
        message = f"TensorRT's parser has no operator {site.op} of domain {site.node.domain!r}; {remedy}"
        yield make_finding("operator", "refused", site, message)


def unique_names(reading: CheckContext) -> Iterator[Finding]:
    """Refuse Q and DQ nodes of equal names. Parser: "the new name is already in use"."""
    seen: set[str] = set()
    for site in reading.sites:
        name = str(site.node.name)
        if not name or (site.op not in QUANTIZE_OPS and site.op not in DEQUANTIZE_OPS):
            continue
        if name in seen:
            message = "another Q or DQ has this name, and TensorRT needs unique ones; rename one"
            yield make_finding("duplicate-name", "refused", site, message)
        seen.add(name)


def outside_branches(reading: CheckContext) -> Iterator[Finding]:
    """Report nodes in an If, Loop or Scan body whose DQ stands outside: the builder runs them in float."""
    for promised in reading.promises:
        for operand in promised.operands:
            if operand.crossed:
                message = (
                    f"its input {operand.tensor!r} is dequantized outside of this body, and TensorRT moves "
                    "no DQ into one; put the pair into the body"
                )
                yield make_finding("outside-body", "float", promised.site, message, operand.tensor)
                break


def loop_results(reading: CheckContext) -> Iterator[Finding]:
    """Report products that a Loop carries to its next step: the builder runs them in float.

    Measured on TensorRT for RTX 1.7.1. Behind any other operator, an Identity too, they stay low.
    """
    carried = {
        value.name for site in reading.sites if site.op == "Loop" for value in bodies(site.node)[0].output
    }
    for promised in reading.promises:
        if promised.site.node.output[0] in carried:
            message = "its result is carried to the next step of a Loop, where TensorRT multiplies in float; "
            yield make_finding("loop-result", "float", promised.site, message + "put an Identity behind it")


def shared_constants(reading: CheckContext) -> Iterator[Finding]:
    """Refuse a quantized constant that DQ nodes of several graphs read (`rewrites.refused_forms`)."""
    first: dict[str, Quantizer] = {}
    for q in reading.quantizers:
        if q.quantizes or q.data not in reading.index.constants:
            continue
        other = first.setdefault(q.data, q)
        if other.site.graph != q.site.graph:
            message = (
                f"its constant {q.data!r} is dequantized in another graph too, by {other.site.name!r}, and "
                "TensorRT takes it in one graph only; store it twice"
            )
            yield make_finding("shared-constant", "refused", q.site, message, q.data)


def skip_branches(reading: CheckContext) -> Iterator[Finding]:
    """Warn of residual sums in the main graph without a pair on the skip branch.

    Source: NVIDIA/TensorRT issue 1992. TensorRT for RTX builds both; without the pair the sum keeps a float
    copy.
    """
    for one in reading.sums:
        (skip,) = one.operands
        if skip.pair is None:
            message = (
                f"its skip branch {skip.tensor!r} has no pair, so the sum stays in float and fuses into no "
                "convolution; put a pair on it"
            )
            yield make_finding("skip-branch", "warning", one.site, message, skip.tensor)


RULES: tuple[Rule, ...] = (
    operators,
    unique_names,
    check_quantized,
    outside_branches,
    loop_results,
    shared_constants,
)

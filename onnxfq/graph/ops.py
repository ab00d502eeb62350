"""Traits of operators: which move data, scale it, have weights or quantize; axes of channels and sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

WEIGHTED_INPUTS: dict[str, tuple[int, ...]] = {
    "Conv": (0, 1),
    "ConvTranspose": (0, 1),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "Einsum": (0, 1),
}
"""Op type -> the inputs that are multiplied; both must be quantized for a low-precision kernel."""

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})

BIASED_PRODUCTS = CONVOLUTIONS | {"Gemm"}
"""Products that add their third input, a bias."""

RANDOM_OPS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators whose outputs are random; Dropout is another one if it trains."""

RECURRENT_OPS = frozenset({"LSTM", "GRU", "RNN"})
"""Operators that multiply weights inside an internal loop."""

SIZES = frozenset({"Shape", "Size"})
"""Operators whose outputs depend on shapes, not on values."""

SIZED_BY_VALUES = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Operators whose shapes depend on values."""

RESHAPES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that return all numbers of their first input in the same order."""

TRANSPOSES = frozenset({"Identity", "Transpose"})
"""Operators that at most permute the axes of their first input: an axis of scales passes through them."""

MOVES = RESHAPES | TRANSPOSES
"""Operators that return every number of their first input once."""

SPLITS = frozenset({"Gather", "Slice", "Split"})
"""Operators that return some numbers of their first input."""

REPEATS = frozenset({"Expand", "Tile"})
"""Operators that return every number of their first input, more than once."""

DATA_MOVEMENT = MOVES | SPLITS | REPEATS | {"DepthToSpace", "MaxPool", "SpaceToDepth"}
"""Operators that return only numbers of their first input: their output is on the same grid."""

SCALES = frozenset({"Div", "Mul"})
"""Operators that scale one input by the other."""

FAKE_QUANTIZE_OPS = frozenset({"FakeQuantize", "DynamicFakeQuantize"})
"""Operators of onnxfq that round floats to a grid and give floats."""

ONNX_QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
"""ONNX operators that quantize a float tensor."""

QDQ_OPS = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators of a Q/DQ pair; all their real operands, scales included, have one float type."""

_RECURRENT = "recurrent: the products of its loop have no inputs of their own to put a pair on"
_ATTENTION = "fused: the products of its attention have no inputs of their own to put a pair on"
_FUSED = "fused: TensorRT and the Q/DQ form know its parts only; export the model without this fusion"

OPAQUE_OPS: dict[tuple[str, str], str] = {
    **{("", op): _RECURRENT for op in sorted(RECURRENT_OPS)},
    ("", "Attention"): _ATTENTION,
    ("", "DeformConv"): "its window moves with the data, and no target has it in low precision",
    **{
        ("com.microsoft", op): _ATTENTION
        for op in """Attention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention GroupQueryAttention
            LongformerAttention MultiHeadAttention PackedAttention PackedMultiHeadAttention PagedAttention
            SparseAttention""".split()
    },
    **{
        ("com.microsoft", op): _FUSED
        for op in ("FusedConv", "FusedGemm", "FusedMatMul", "GemmFastGelu", "MoE", "TransposeMatMul")
    },
    **{("com.microsoft.nchwc", op): _FUSED for op in ("Conv",)},
}
"""(Domain, op type) of operators that multiply inside -> reason why they stay in float."""

INTEGER_PRODUCTS = frozenset(
    """ConvInteger DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat QAttention
    QGemm QLinearConv QLinearMatMul""".split()
)
"""Operators that multiply integers."""

BLOCK_PRODUCTS = frozenset({"MatMulBnb4", "MatMulNBits", "QMoE"})
"""Operators that multiply floats by weights that are stored in blocks of few bits."""

BLOCK_BITS = (2, 4, 8)
"""Bits of numbers in MatMulNBits, QMoE and GatherBlockQuantized."""

QUANTIZED_OPS = (
    QDQ_OPS
    | ONNX_QUANTIZERS
    | FAKE_QUANTIZE_OPS
    | INTEGER_PRODUCTS
    | BLOCK_PRODUCTS
    | set(
        """GatherBlockQuantized QEmbedLayerNormalization QLinearAdd QcQuantizeOp TRT_FP4DynamicQuantize
        TRT_FP8DequantizeLinear TRT_INT4DequantizeLinear TRT_MXFP8DequantizeLinear
        TRT_MXFP8DynamicQuantize""".split()
    )
)
"""Op types, of any domain, that mark a model as quantized already."""

FLOAT_PRODUCTS = frozenset(
    """DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized MatMulBnb4 MatMulIntegerToFloat
    MatMulNBits QAttention QEmbedLayerNormalization QGemm""".split()
)
"""Quantized operators that multiply and return floats; their outputs are not quantized."""


STANDARD_DOMAINS = (None, "", "ai.onnx")
"""Spellings of the domain of ONNX's own operators."""

ONNXFQ_DOMAIN = "onnxfq"
"""Domain of the custom-op library."""


def is_weighted(node: gs.Node) -> bool:
    """Tell whether `node` is a standard operator that multiplies two tensors and sums the products."""
    if node.op not in WEIGHTED_INPUTS or node.domain not in STANDARD_DOMAINS:
        return False
    return node.op != "Einsum" or einsum_product(str(node.attrs.get("equation", ""))) is not None


def explain_opaque(node: gs.Node) -> str:
    """Return why `node`, which multiplies inside, stays in float; an empty string for other operators."""
    domain = node.domain or ""
    if node.op == "Einsum" and node.domain in STANDARD_DOMAINS and not is_weighted(node):
        equation = str(node.attrs.get("equation", ""))
        return f"{equation!r} is not a product of two tensors like MatMul" if "," in equation else ""
    return OPAQUE_OPS.get(("" if domain == "ai.onnx" else domain, node.op), "")


@dataclass(frozen=True)
class MatrixProduct:
    """An Einsum of two operands that sums products.

    Attributes:
        operands: the labels of each operand, `.` for an ellipsis.
        summed: the labels that are summed over.
        kept: the labels of the output.
    """

    operands: tuple[str, str]
    summed: str
    kept: str


def einsum_product(equation: str) -> MatrixProduct | None:
    """Return `equation` as a product of two tensors like MatMul; None if it is not one.

    Excluded: any number of operands other than two, a diagonal, no summed label that both operands have, and
    a sum over a label of only one operand.
    """
    left, arrow, kept = equation.replace(" ", "").replace("...", ".").partition("->")
    operands = left.split(",")
    if len(operands) != 2 or any(len(set(labels)) != len(labels) for labels in operands):
        return None
    both = "".join(operands)
    if not arrow:
        kept = "".join(sorted(label for label in set(both) if both.count(label) == 1 or label == "."))
    summed = "".join(label for label in operands[0] if label not in kept)
    if not summed or any(label not in kept and label not in operands[0] for label in operands[1]):
        return None
    if any(label not in operands[1] for label in summed) or "." in summed:
        return None
    return MatrixProduct((operands[0], operands[1]), summed, kept)


def _einsum_axis(
    node: gs.Node, slot: int, rank: int, wanted: Callable[[MatrixProduct, str], bool]
) -> int | None:
    """Return the axis of the only label of an operand that is `wanted`; None for none or several."""
    product = einsum_product(str(node.attrs.get("equation", "")))
    if product is None:
        return None
    labels = product.operands[slot]
    if "." in labels:
        labels = labels.replace(".", "." * (rank - len(labels) + 1))
    found = [axis for axis, label in enumerate(labels) if label != "." and wanted(product, label)]
    return found[0] if len(found) == 1 else None


def channel_axis(node: gs.Node, slot: int, rank: int) -> int | None:
    """Return the axis of a constant input of `rank` that holds output channels; None when it has none.

    Sources: ONNX operator definitions; TensorRT accepts exactly these axes (Conv 0, Gemm 0 with transB and 1
    without, MatMul the last axis of B). A scale that varies along a summed axis cannot be moved out of the
    sum.
    """
    if node.op == "Conv" and slot == 1:
        return 0
    if node.op == "ConvTranspose" and slot == 1:
        return 1  # [channels in, channels out / group, ...]
    if node.op == "Gemm":
        return _gemm_summed_axis(node, slot) ^ 1
    if node.op == "MatMul" and rank >= 2:
        return rank - 1 if slot == 1 else rank - 2
    if node.op == "Einsum":
        # Tried on TensorRT for RTX 1.7.1: int8 where one axis is the operand's own; with several, per tensor.
        return _einsum_axis(node, slot, rank, lambda p, label: label not in p.operands[1 - slot])
    return None


def find_summed_axis(node: gs.Node, slot: int, rank: int) -> int | None:
    """Return the summed axis of a MatMul, Gemm or Einsum input of `rank`; None for other operators."""
    if node.op == "Gemm":
        return _gemm_summed_axis(node, slot)
    if node.op == "MatMul":
        return max(rank - 2, 0) if slot == 1 else rank - 1
    if node.op == "Einsum":
        return _einsum_axis(node, slot, rank, lambda p, label: label in p.summed)
    return None


def find_summed_channels(node: gs.Node, slot: int) -> int | None:
    """Return the axis of the input channels of a convolution without groups; None for other operators.

    These channels are summed over together with the window. Blocks along the axis give every product one
    scale of the input and one of the weight. With groups, a block of the input would reach into the next
    group.
    """
    if node.op not in CONVOLUTIONS or node.attrs.get("group", 1) != 1:
        return None
    return 0 if node.op == "ConvTranspose" and slot == 1 else 1


def _gemm_summed_axis(node: gs.Node, slot: int) -> int:
    return int(bool(node.attrs.get("transB" if slot else "transA", 0)) == bool(slot))

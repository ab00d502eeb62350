"""Facts about operators that quantization needs: which have weights, and on which axis their channels lie."""

from __future__ import annotations

import onnx_graphsurgeon as gs

WEIGHTED_INPUTS: dict[str, tuple[int, ...]] = {
    "Conv": (0, 1),
    "ConvTranspose": (0, 1),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
}
"""Op type -> the inputs that are multiplied; both must be quantized for a low-precision kernel."""

RECURRENT_OPS = frozenset({"LSTM", "GRU", "RNN"})
"""Operators that multiply weights inside a loop of their own."""

QUANTIZED_OPS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
        "FakeQuantize",
        "DynamicFakeQuantize",
        "QLinearAdd",
        "QGemm",
        "MatMulNBits",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "QcQuantizeOp",
        "TRT_FP4DynamicQuantize",
        "TRT_FP8DequantizeLinear",
        "TRT_INT4DequantizeLinear",
        "TRT_MXFP8DequantizeLinear",
        "TRT_MXFP8DynamicQuantize",
    }
)
"""Op types, of any domain, that show that a model is quantized already."""


STANDARD_DOMAINS = (None, "", "ai.onnx")
"""How the domain of ONNX's own operators is spelled."""


def is_weighted(node: gs.Node) -> bool:
    """Tell whether `node` is a standard operator that multiplies two tensors."""
    return node.op in WEIGHTED_INPUTS and node.domain in STANDARD_DOMAINS


def channel_axis(node: gs.Node, slot: int, rank: int) -> int | None:
    """Return the axis of a constant input of `rank` that holds output channels; None when it has none.

    Sources: ONNX operator definitions; TensorRT takes exactly these (Conv 0, Gemm 0 with transB and 1
    without, MatMul the last axis of B). A scale that varies along a summed axis cannot be moved out
    of the sum.
    """
    if node.op == "Conv" and slot == 1:
        return 0
    if node.op == "ConvTranspose" and slot == 1:
        return 1  # [channels in, channels out / group, ...]
    if node.op == "Gemm":
        return _gemm_summed_axis(node, slot) ^ 1
    if node.op == "MatMul" and rank >= 2:
        return rank - 1 if slot == 1 else rank - 2
    return None


def summed_axis(node: gs.Node, slot: int, rank: int) -> int | None:
    """Return the axis of a MatMul or Gemm input of `rank` that is summed over; None for other ops."""
    if node.op == "Gemm":
        return _gemm_summed_axis(node, slot)
    if node.op == "MatMul":
        return max(rank - 2, 0) if slot == 1 else rank - 1
    return None


def summed_channels(node: gs.Node, slot: int) -> int | None:
    """Return the axis of the input channels of a convolution without groups, summed over with the window.

    In blocks along it every product has one scale of the input and one of the weight. With groups a block of
    the input would reach into the next group: None.
    """
    if node.op not in ("Conv", "ConvTranspose") or node.attrs.get("group", 1) != 1:
        return None
    return 0 if node.op == "ConvTranspose" and slot == 1 else 1


def _gemm_summed_axis(node: gs.Node, slot: int) -> int:
    if slot == 0:
        return 0 if node.attrs.get("transA", 0) else 1
    return 1 if node.attrs.get("transB", 0) else 0

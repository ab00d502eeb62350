"""Small shapes and depthwise convolutions, left in float if a recipe asks for it.

TensorRT for RTX 1.7.1 pads every group of an int8 convolution to four channels: the input of a depthwise one
is written four times as large. The layers of an engine move these bytes, in int8 and then with depthwise in
half: GhostNet writes 5.7 and 3.9 MB and reads 12.7 and 9.3 MB; RepViT gains nothing and gets 23 layers more.
Bytes are a proxy, and only a GPU shows the time. Therefore int8 recipes quantize depthwise convolutions. In
float8 such a convolution also costs accuracy.

The limits of small shapes follow NVIDIA's Model Optimizer (graph_utils.py, August 2026), which excludes such
nodes by default. No speed was measured: kernels exist for all these shapes, and only a GPU shows whether
they are faster. In float8 such convolutions cost accuracy; with all convolutions in float8, then without
these and depthwise ones: yolox_nano, recall 0.635 and 0.731; ultraface, F1 to float 0.910 and 0.944; espcn,
26.27 dB and 28.11 dB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.placement.target_policy import NodeDecision

WHY_FLOAT = (
    "a depthwise convolution, which sums over no channels; to quantize it, set depthwise: quantize in the "
    "recipe"
)
"""Reason for float."""


def is_depthwise(node: gs.Node) -> bool:
    """Tell whether `node` is a convolution with constant weights whose groups read one channel each."""
    if node.op != "Conv" or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = node.inputs[1].shape
    return len(shape) > 2 and shape[1] == 1 and node.attrs.get("group", 1) > 1


def leave_out_depthwise(decisions: list[NodeDecision], nodes: Iterable[gs.Node]) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for depthwise convolutions."""
    found = {node.name for node in nodes if is_depthwise(node)}
    return [
        decision.leave_out("depthwise", WHY_FLOAT)
        if decision.node in found and decision.placements
        else decision
        for decision in decisions
    ]


FEWEST = 16
"""Least number of channels of a convolution, and of columns and summed elements of a product."""
MULTIPLE = 8

_PRODUCTS = ("MatMul", "Gemm")
OPERATORS: Mapping[str, tuple[str, ...]] = {"convolutions": ("Conv",), "float": ("Conv", *_PRODUCTS)}
"""Value of the recipe's field -> the operators that are left out if they are too small."""

_REMEDY = "; to quantize it, set small_shapes: quantize in the recipe"


def leave_out_small(
    decisions: list[NodeDecision], nodes: Iterable[gs.Node], op_types: Collection[str]
) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for nodes of `op_types` that are too small."""
    by_name = {node.name: node for node in nodes if node.op in op_types}
    made = []
    for decision in decisions:
        node = by_name.get(decision.node)
        why = _too_small(node, decision) if node is not None and decision.placements else ""
        made.append(decision.leave_out("small-shape", why + _REMEDY) if why else decision)
    return made


def _too_small(node: gs.Node, decision: NodeDecision) -> str:
    if node.op == "Conv":
        shape = _known(node.inputs[1].shape)
        is_float8 = decision.placements[0].spec.qtype.is_float
        return "" if shape is None else _conv(node, shape, is_float8)
    return _product(node)


def _conv(node: gs.Node, shape: Sequence[int], is_float8: bool) -> str:
    group = int(node.attrs.get("group", 1))
    out, into, window = shape[0], shape[1] * group, shape[2:]
    found = f"{into} channels in and {out} out"
    if is_float8:
        if min(shape[1], out) > FEWEST or is_depthwise(node):
            return ""
        found += f" in {group} groups" if group > 1 else ""
        return f"float8 gains from more than {FEWEST} channels: {found}"
    if group > 1:
        small = out % MULTIPLE or prod(window) < 3
        rule = f"grouped int8 gains from a multiple of {MULTIPLE} channels and windows of 3 and more"
        return f"{rule}: {found}, window {list(window)}" if small else ""
    if min(into, out) >= FEWEST:
        return ""
    square = len(set(window)) == 1
    even = into % MULTIPLE == 0 or out % MULTIPLE == 0
    first = not node.inputs[0].inputs
    if square and even and (first or max(into, out) >= FEWEST):
        return ""
    return f"int8 gains from {FEWEST} channels: {found}"


def _product(node: gs.Node) -> str:
    left, right = (tensor.shape for tensor in node.inputs[:2])
    turned = [bool(node.attrs.get(name, 0)) for name in ("transA", "transB")]
    rows, summed = _sizes(left, turned[0])
    columns, again = _sizes(right, not turned[1])
    summed = summed if isinstance(summed, int) else again
    if rows == 1 or columns == 1:
        return f"a product with a vector: [{rows}, {summed}] by [{summed}, {columns}]"
    small = [size for size in (summed, columns) if isinstance(size, int) and size < FEWEST]
    return f"a product gains from matrices of {FEWEST} and more: {small[0]}" if small else ""


def _sizes(shape: Sequence[int | str] | None, turned: bool) -> tuple[int | str, int | str]:
    """Return (other size, summed size) of a matrix, summed along its last axis, if `turned` the one before.

    A vector is one row; sizes of an unknown shape are "?".
    """
    if not shape:
        return "?", "?"
    if len(shape) == 1:
        return 1, shape[0]
    return (shape[-1], shape[-2]) if turned else (shape[-2], shape[-1])


def _known(shape: Sequence[int | str] | None) -> list[int] | None:
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    return sizes if len(sizes) == len(shape) else None

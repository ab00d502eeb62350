"""Nodes that a recipe leaves in float: depthwise convolutions, small shapes, log spectra.

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

Products of log spectra stay in float for 8-bit integers. Measured on three trained networks for sound, as
signal to noise of the outputs with recipe tensorrt-int8, first with the front end in int8, then in float:
basic_pitch 18.5 and 33.1 dB, DNSMOS 24.3 and 33.6 dB, confidence of SwiftF0 10.2 and 33.1 dB. Float8 has
digits for small numbers: with it the three are as good either way. The front end of such a network computes
the power of every band of a signal, and its logarithm: products with a fixed matrix or filter, squares, sums,
perhaps a root and a bank of filters. A grid of 127 steps ends 42 dB below its largest value. Most bands of
most sounds lie below that. They are rounded to nothing or to one step, and the logarithm turns either into a
large error. No other structure matches, because everything up to the square must be linear in an input of the
model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Literal

import onnx_graphsurgeon as gs

from onnxfq.graph.model import bodies
from onnxfq.graph.ops import MOVES, REPEATS, SIZES, SPLITS
from onnxfq.graph.queries import find_fixed, nodes_by_graph
from onnxfq.placement.target_policy import NodeDecision, TargetPolicy

WHY_FLOAT = (
    "a depthwise convolution, which sums over no channels; to quantize it, set depthwise: quantize in the "
    "recipe"
)
"""Reason for float."""


_PRODUCTS = ("MatMul", "Gemm")


def is_depthwise(node: gs.Node) -> bool:
    """Tell whether `node` is a convolution with constant weights whose groups read one channel each."""
    if node.op != "Conv" or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = node.inputs[1].shape
    return len(shape) > 2 and shape[1] == 1 and node.attrs.get("group", 1) > 1


def leave_out_depthwise(decisions: list[NodeDecision], nodes: Iterable[gs.Node]) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for depthwise convolutions."""
    found = {node.name for node in nodes if is_depthwise(node)}
    return [d.leave_out("depthwise", WHY_FLOAT) if d.node in found and d.placements else d for d in decisions]


def leave_out_fixed(decisions: list[NodeDecision], nodes: Collection[gs.Node]) -> list[NodeDecision]:
    """Return `decisions`, in float by rule for what is computed from constants alone.

    Runtimes compute it once as they load the model, unless pairs keep them from it.
    """
    fixed, reason = find_fixed(nodes), ("fixed", "computed from constants, once")
    return [d.leave_out(*reason, by_rule=True) if d.node in fixed and d.placements else d for d in decisions]


FEWEST = 16
"""Least number of channels of a convolution, and of columns and summed elements of a product."""
MULTIPLE = 8

OPERATORS: Mapping[str, tuple[str, ...]] = {
    "bytes": ("Conv",),
    "convolutions": ("Conv",),
    "float": ("Conv", *_PRODUCTS),
}
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


MOST_BITS = 8
"""Bits of linear values that are too few for a log spectrum."""

_Kind = Literal["fixed", "linear", "power"]
"""fixed: the same for all data of one shape. linear: linear in an input of the model, up to added constants.
power: squares or magnitudes of linear values, combined by sums and products with fixed values."""

# Linear in the first input if the others are fixed.
_LINEAR = MOVES | SPLITS | REPEATS
_LINEAR |= {"Cast", "DFT", "Div", "Neg", "Pad", "ReduceMean", "ReduceSum", "STFT"}
_SUMS = frozenset({"Add", "Concat", "Sub", "Sum"})
_SPECTRAL = frozenset({"Conv", "Einsum", "Gemm", "MatMul", "Mul"})
_FLOORS = frozenset({"Clip", "Max", "Min", "ReduceMax", "Sqrt"})
_SQUARES = frozenset({"Abs", "Pow", "ReduceL1", "ReduceL2", "ReduceSumSquare"})

_WHY = (
    "it makes a log spectrum, whose small powers lie below one step of {} bits; to quantize it, set "
    "log_spectra: quantize in the recipe"
)


def leave_out_log_spectra(
    decisions: list[NodeDecision], graph: gs.Graph, policy: TargetPolicy
) -> list[NodeDecision]:
    """Return `decisions`, in float for nodes that make a log spectrum from integers of few bits."""
    found = _makers_of_log_spectra(graph)
    # Powers have a pair only where the logarithm has one, and span twice the decades of what is squared.
    most = 2 * MOST_BITS if "Log" in policy.operators else MOST_BITS
    return [_keep_in_float(one, most) if one.node in found else one for one in decisions]


def _keep_in_float(decision: NodeDecision, most: int) -> NodeDecision:
    """Return `decision`, in float with a reason if its activations are integers of up to `most` bits."""
    qtypes = [placement.spec.qtype for placement in decision.placements if placement.role == "activation"]
    bits = min((qtype.bits for qtype in qtypes if not qtype.is_float), default=most + 1)
    if bits > most:
        return decision
    return decision.leave_out("log-spectrum", _WHY.format(bits))


def _makers_of_log_spectra(graph: gs.Graph) -> set[str]:
    """Return the names of the nodes between a model input and the logarithm of a spectrum, and of that."""
    logs = [node for node in nodes_by_graph(graph) if node.op == "Log"]
    kinds = _kinds(graph) if logs else {}
    level = [tensor for node in logs for tensor in node.inputs]
    seen: set[str] = set()
    found: set[str] = set()
    while level:
        tensor = level.pop()
        if tensor.name not in seen and kinds.get(tensor.name, "fixed") != "fixed":
            seen.add(tensor.name)
            found |= {node.name for node in tensor.inputs}
            level += [read for node in tensor.inputs for read in node.inputs]
    return found | {node.name for node in logs if seen.issuperset(one.name for one in node.inputs)}


def _kinds(graph: gs.Graph) -> dict[str, _Kind]:
    """Return the kind of every tensor that has one."""
    kinds: dict[str, _Kind] = {tensor.name: "linear" for tensor in graph.inputs}
    for node in nodes_by_graph(graph):  # a body comes after everything that it reads from outside
        read = [_kind_of(tensor, kinds) for tensor in node.inputs]
        kind = None if bodies(node) else _find_kind(node, read)
        if kind is not None:
            kinds |= {tensor.name: kind for tensor in node.outputs}
    return kinds


def _kind_of(tensor: gs.Tensor, kinds: dict[str, _Kind]) -> _Kind | None:
    if isinstance(tensor, gs.Constant) or tensor.is_empty():
        return "fixed"
    return kinds.get(tensor.name)


def _find_kind(node: gs.Node, read: Sequence[_Kind | None]) -> _Kind | None:
    """Return the kind of the outputs of `node` for inputs of kinds `read`; None if it has none."""
    if node.op in SIZES or all(kind == "fixed" for kind in read):
        return "fixed"
    data = {kind for kind in read if kind != "fixed"}
    if len(data) != 1:
        return None
    (kind,) = data
    alone = sum(one == kind for one in read) == 1
    if node.op in _SUMS or (alone and node.op in _SPECTRAL) or (read[0] == kind and node.op in _LINEAR):
        return kind
    if node.op in _SQUARES or (node.op == "Mul" and node.inputs[0] is node.inputs[1]):
        return "power"
    return "power" if kind == "power" and node.op in _FLOORS else None

"""Products of log spectra, kept in float for 8-bit integers.

Measured on three trained networks for sound, as signal to noise of the outputs with recipe tensorrt-int8,
first with the front end in int8, then in float: basic_pitch 18.5 and 33.1 dB, DNSMOS 24.3 and 33.6 dB,
confidence of SwiftF0 10.2 and 33.1 dB. Float8 has digits for small numbers: with it the three are as good
either way.

The front end of such a network computes the power of every band of a signal, and its logarithm: products with
a fixed matrix or filter, squares, sums, perhaps a root and a bank of filters. A grid of 127 steps ends 42 dB
below its largest value. Most bands of most sounds lie below that. They are rounded to nothing or to one step,
and the logarithm turns either into a large error. No other structure matches, because everything up to the
square must be linear in an input of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import onnx_graphsurgeon as gs

from onnxfq.graph.model import bodies
from onnxfq.graph.ops import MOVES, REPEATS, SIZES, SPLITS, is_weighted
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.target_policy import NodeDecision

MOST_BITS = 8

_Kind = Literal["fixed", "linear", "power"]
"""fixed: the same for all data of one shape. linear: linear in an input of the model, up to added constants.
power: squares or magnitudes of linear values, combined by sums and products with fixed values."""

# Linear in the first input if the others are fixed.
_LINEAR = MOVES | SPLITS | REPEATS
_LINEAR |= {"Cast", "DFT", "Div", "Neg", "Pad", "ReduceMean", "ReduceSum", "STFT"}
_SUMS = frozenset({"Add", "Concat", "Sub", "Sum"})
_PRODUCTS = frozenset({"Conv", "Einsum", "Gemm", "MatMul", "Mul"})
_FLOORS = frozenset({"Clip", "Max", "Min", "ReduceMax", "Sqrt"})
_SQUARES = frozenset({"Abs", "Pow", "ReduceL1", "ReduceL2", "ReduceSumSquare"})

_WHY = (
    "it makes a log spectrum, whose small powers lie below one step of {} bits; to quantize it, set "
    "log_spectra: quantize in the recipe"
)


def leave_out_log_spectra(decisions: list[NodeDecision], graph: gs.Graph) -> list[NodeDecision]:
    """Return `decisions`, in float for nodes that make a log spectrum from integers of few bits."""
    found = _makers_of_log_spectra(graph)
    return [_keep_in_float(decision) if decision.node in found else decision for decision in decisions]


def _keep_in_float(decision: NodeDecision) -> NodeDecision:
    """Return `decision`, in float with a reason if its activations are integers of few bits."""
    qtypes = [placement.spec.qtype for placement in decision.placements if placement.role == "activation"]
    bits = min((qtype.bits for qtype in qtypes if not qtype.is_float), default=MOST_BITS + 1)
    if bits > MOST_BITS:
        return decision
    return decision.leave_out("log-spectrum", _WHY.format(bits))


def _makers_of_log_spectra(graph: gs.Graph) -> set[str]:
    """Return the names of weighted nodes between a model input and the logarithm of a spectrum."""
    level = [tensor for node in nodes_by_graph(graph) if node.op == "Log" for tensor in node.inputs]
    kinds = _kinds(graph) if level else {}
    found: set[str] = set()
    seen: set[str] = set()
    while level:
        tensor = level.pop()
        if tensor.name in seen or kinds.get(tensor.name, "fixed") == "fixed":
            continue
        seen.add(tensor.name)
        for maker in tensor.inputs:
            level += maker.inputs
            if is_weighted(maker):
                found.add(maker.name)
    return found


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
    if node.op in _SUMS or (alone and node.op in _PRODUCTS) or (read[0] == kind and node.op in _LINEAR):
        return kind
    if node.op in _SQUARES or (node.op == "Mul" and node.inputs[0] is node.inputs[1]):
        return "power"
    return "power" if kind == "power" and node.op in _FLOORS else None

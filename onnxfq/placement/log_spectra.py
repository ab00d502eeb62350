"""Products of a spectrum whose logarithm is taken: in float, for 8 bits would erase what it shows.

The front end of a network for sound makes the power of every band of a signal, and its logarithm: products
with a fixed matrix or filter, squares, sums, perhaps a root and a bank of filters. A grid of 127 steps ends
42 dB below its largest value. Most bands of most sounds lie below that: rounded to nothing, or to one step,
and the logarithm makes of either a large error.

Nothing else looks like it, for all up to the square must be linear in an input of the model. Measured on
networks that were trained (signal to noise of what comes out, tensorrt-int8, with the front end in int8 and
in float): basic_pitch 18.5 and 33.1 dB, DNSMOS 24.3 and 33.6 dB, the confidence of SwiftF0 10.2 and 33.1 dB.
Float8 has digits for small numbers: with it the three are as good either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import onnx_graphsurgeon as gs

from onnxfq.graph.model import bodies
from onnxfq.graph.ops import MOVES, REPEATS, SIZES, SPLITS, is_weighted
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.weighted_ops import NodeDecision

MOST_BITS = 8

_Kind = Literal["fixed", "linear", "power"]
"""fixed: the same for all data of one shape. linear: linear in an input of the model, but for constants that
are added. power: made of squares or magnitudes of such, by sums and products with what is fixed."""

# Linear in their first input, the others being fixed.
_LINEAR = MOVES | SPLITS | REPEATS
_LINEAR |= {"Cast", "DFT", "Div", "Neg", "Pad", "ReduceMean", "ReduceSum", "STFT"}
_SUMS = frozenset({"Add", "Concat", "Sub", "Sum"})
_PRODUCTS = frozenset({"Conv", "Einsum", "Gemm", "MatMul", "Mul"})
_FLOORS = frozenset({"Clip", "Max", "Min", "ReduceMax", "Sqrt"})
_SQUARES = frozenset({"Abs", "Pow", "ReduceL1", "ReduceL2", "ReduceSumSquare"})

_WHY = (
    "it makes a spectrum whose logarithm is taken, and the small powers that shows lie below a step of {} "
    "bits; log_spectra: quantize in the recipe quantizes it all the same"
)


def leave_out_log_spectra(decisions: list[NodeDecision], graph: gs.Graph) -> list[NodeDecision]:
    """Return `decisions` with the reason where a node makes such a spectrum of integers of few bits."""
    found = _makers_of_log_spectra(graph)
    return [_in_float(decision) if decision.node in found else decision for decision in decisions]


def _in_float(decision: NodeDecision) -> NodeDecision:
    """Return `decision` with its reason for float, where its activations have few steps."""
    qtypes = [placement.spec.qtype for placement in decision.placements if placement.role == "activation"]
    bits = min((qtype.bits for qtype in qtypes if not qtype.is_float), default=MOST_BITS + 1)
    if bits > MOST_BITS:
        return decision
    return replace(decision, placements=(), why_float=_WHY.format(bits))


def _makers_of_log_spectra(graph: gs.Graph) -> set[str]:
    """Return the names of weighted nodes between an input of the model and the logarithm of a spectrum."""
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
    for node in nodes_by_graph(graph):  # a body comes after all that it reads from outside
        read = [_kind_of(tensor, kinds) for tensor in node.inputs]
        kind = None if bodies(node) else _made_kind(node, read)
        if kind is not None:
            kinds |= {tensor.name: kind for tensor in node.outputs}
    return kinds


def _kind_of(tensor: gs.Tensor, kinds: dict[str, _Kind]) -> _Kind | None:
    if isinstance(tensor, gs.Constant) or tensor.is_empty():
        return "fixed"
    return kinds.get(tensor.name)


def _made_kind(node: gs.Node, read: Sequence[_Kind | None]) -> _Kind | None:
    """Return the kind of what `node` makes of inputs of such kinds; None where it has none."""
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

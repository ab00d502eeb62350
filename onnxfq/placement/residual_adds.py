"""Placement on the skip branch of a residual Add.

With a pair on the skip input alone, the Add fuses into the weighted operator that ends the other branch, and
the sum can leave it in low precision (sources: NVIDIA, explicit quantization guide; NVIDIA/TensorRT issue
1992). If both branches end in a weighted operator, the longer one is the fused one.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfq.graph.follow import follow, readers_of
from onnxfq.graph.ops import CONVOLUTIONS, is_weighted
from onnxfq.graph.queries import distances_upward, float_type
from onnxfq.support.reasons import Reason

RESIDUAL = "Add (residual)"
"""Name of residual sums in a coverage; their skip branch alone has a pair."""

# Operators that builders fold into the weighted operator before them: bias, BatchNormalization.
_FOLDED = frozenset({"BatchNormalization", "Identity", "Add", "Mul"})
# Operators allowed between the sum and its quantized reader.
_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSwish", "HardSigmoid"})


@dataclass(frozen=True)
class Skip:
    """Skip branch of a residual Add.

    Attributes:
        slot: the input of the Add.
        why_float: reason for no pair; empty if it gets one.
    """

    slot: int
    why_float: str = ""


def residual_skip(add: gs.Node, quantized_nodes: set[str]) -> Skip | None:
    """Return the skip branch of `add`; None if it is not a residual sum.

    Args:
        add: the node.
        quantized_nodes: names of the nodes that will run in low precision.
    """
    if add.op != "Add" or any(isinstance(tensor, gs.Constant) for tensor in add.inputs):
        return None
    left, right = add.inputs
    if left is right or None in (float_type(left), float_type(right)) or _broadcasts(left, right):
        return None
    ends = [_find_weighted_end(tensor, quantized_nodes) for tensor in (left, right)]
    if ends[0] is None and ends[1] is None:
        return None
    both = ends[0] is not None and ends[1] is not None
    main = _main_branch(left, right) if both else int(ends[0] is None)
    convolves = any(end is not None and end.op in CONVOLUTIONS for end in ends)
    if convolves or _read_by(add.outputs[0], quantized_nodes):
        return Skip(1 - main)
    why = "skip branch of a sum that no quantized operator reads: a pair would only add noise"
    return Skip(1 - main, Reason("residual", why))


def _broadcasts(left: gs.Tensor, right: gs.Tensor) -> bool:
    """Tell whether one side is known to broadcast, such as a bias or a gate; then it is not a skip branch."""
    if left.shape is None or right.shape is None:
        return False
    pairs = zip(left.shape, right.shape, strict=False)
    return len(left.shape) != len(right.shape) or any(a != b and 1 in (a, b) for a, b in pairs)


def _find_weighted_end(tensor: gs.Tensor, quantized_nodes: set[str]) -> gs.Node | None:
    """Return the quantized operator whose result, with bias and BatchNormalization only, is `tensor`."""
    while tensor.inputs and len(tensor.outputs) == 1:
        node = tensor.inputs[0]
        if is_weighted(node):
            return node if node.name in quantized_nodes else None
        data = [t for t in node.inputs if not isinstance(t, gs.Constant)]
        if node.op not in _FOLDED or len(data) != 1:
            return None
        tensor = data[0]
    return None


def _main_branch(left: gs.Tensor, right: gs.Tensor) -> int:
    """Return 0 or 1, the branch with the longer path from their common source."""
    lefts, rights = distances_upward(left), distances_upward(right)
    shared = [name for name in lefts if name in rights]
    if not shared:
        return 0
    fork = min(shared, key=lambda name: (lefts[name] + rights[name], name))
    return 0 if lefts[fork] >= rights[fork] else 1


def _read_by(tensor: gs.Tensor, quantized_nodes: set[str]) -> bool:
    """Tell whether a quantized node reads `tensor`, directly or behind activations."""
    reached = (
        node
        for reader, place in readers_of(tensor)
        for node, *_ in follow(reader, place, passes=lambda node, *_: node.op in _ACTIVATIONS)
    )
    return any(node.name in quantized_nodes for node in reached)

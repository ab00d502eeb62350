"""Bounds of the values of a float tensor that follow from the operator that computes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx

from onnxfq.graph.ops import DATA_MOVEMENT, STANDARD_DOMAINS

Bounds = tuple[float, float]
"""The least and the largest possible value; infinite where nothing is known."""

UNKNOWN: Bounds = (-math.inf, math.inf)


def _hull(given: Sequence[Bounds]) -> Bounds:
    return min(low for low, _ in given), max(high for _, high in given)


def _clip(given: Sequence[Bounds]) -> Bounds:
    """Return the bounds of Clip, whose limits are its second and third input."""
    (low, high), *ends = given
    least = ends[0][0] if ends else -math.inf
    most = ends[1][1] if len(ends) > 1 else math.inf
    return min(max(low, least), most), max(min(high, most), least)


def _absolute(given: Sequence[Bounds]) -> Bounds:
    return 0.0, max(map(abs, given[0]))


_RULES: dict[str, Callable[[Sequence[Bounds]], Bounds]] = {
    **dict.fromkeys(DATA_MOVEMENT, lambda given: given[0]),
    **dict.fromkeys(
        ("GatherElements", "GatherND", "GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean"),
        lambda given: given[0],
    ),
    **dict.fromkeys(("ReduceMin", "Resize", "ReverseSequence", "TopK", "Upsample"), lambda given: given[0]),
    **dict.fromkeys(("HardSigmoid", "Sigmoid", "Softmax"), lambda given: (0.0, 1.0)),
    **dict.fromkeys(("Cos", "Erf", "Sin", "Softsign", "Tanh"), lambda given: (-1.0, 1.0)),
    **dict.fromkeys(("Exp", "Softplus", "Sqrt"), lambda given: (0.0, math.inf)),
    "Abs": _absolute,
    "AveragePool": lambda given: _hull([given[0], (0.0, 0.0)]),  # padding may count as 0
    "Clip": _clip,
    "Concat": _hull,
    "Max": lambda given: (max(low for low, _ in given), max(high for _, high in given)),
    "Min": lambda given: (min(low for low, _ in given), min(high for _, high in given)),
    "Pad": lambda given: _hull([given[0], given[2] if len(given) > 2 else (0.0, 0.0)]),
    "Relu": lambda given: (max(given[0][0], 0.0), max(given[0][1], 0.0)),
    "Where": lambda given: _hull(given[1:3]),
}


def bounds_of(node: onnx.NodeProto, given: Sequence[Bounds]) -> Bounds:
    """Return the bounds of the first output of `node`, of any output of a Split.

    Args:
        node: an operator on float tensors.
        given: the bounds of its inputs.
    """
    if node.op_type not in _RULES or node.domain not in STANDARD_DOMAINS or not given:
        return UNKNOWN
    attributes = {a.name: a for a in node.attribute}
    if node.op_type == "Clip" and len(given) == 1:  # below opset 11 its limits are attributes
        ends = (attributes[name].f if name in attributes else None for name in ("min", "max"))
        given = [*given, *(UNKNOWN if end is None else (end, end) for end in ends)]
    if "mode" in attributes and attributes["mode"].s == b"cubic":
        return UNKNOWN
    return _RULES[node.op_type](given)

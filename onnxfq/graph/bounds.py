"""Bounds of the values of a float tensor that follow from the operator that computes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import onnx

from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import DATA_MOVEMENT, QDQ_OPS, STANDARD_DOMAINS
from onnxfq.numerics.float_types import FLOAT_CODES

Bounds = tuple[float, float]
"""The least and the largest possible value; infinite where nothing is known."""

UNKNOWN: Bounds = (-math.inf, math.inf)

KNOWN_RANGES: dict[str, Bounds] = {
    **dict.fromkeys(("HardSigmoid", "Sigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Cos", "Erf", "Sin", "Softsign", "Tanh"), (-1.0, 1.0)),
}
"""Op type -> smallest range of all possible outputs (ONNX's definitions)."""


def hull(given: Sequence[Bounds]) -> Bounds:
    """Return the bounds of values that have one of these bounds."""
    return min(low for low, _ in given), max(high for _, high in given)


def _clip(given: Sequence[Bounds]) -> Bounds:
    """Return the bounds of Clip, whose limits are its second and third input."""
    (low, high), *ends = given
    least = ends[0][0] if ends else -math.inf
    most = ends[1][1] if len(ends) > 1 else math.inf
    return min(max(low, least), most), max(min(high, most), least)


_KEPT = DATA_MOVEMENT | set("Cast Dropout GatherElements GatherND GlobalAveragePool GlobalMaxPool".split())
_KEPT |= QDQ_OPS | {"ReduceMax", "ReduceMean", "ReduceMin", "Resize", "ReverseSequence", "TopK", "Upsample"}


def _add(given: Sequence[Bounds]) -> Bounds:
    return sum(low for low, _ in given), sum(high for _, high in given)


def _multiply(given: Sequence[Bounds]) -> Bounds:
    products = [0.0 if 0.0 in (a, b) else a * b for a in given[0] for b in given[1]]
    return min(products), max(products)


_RULES: dict[str, Callable[[Sequence[Bounds]], Bounds]] = {
    **dict.fromkeys(sorted(_KEPT), lambda given: given[0]),
    **{op: partial(lambda ends, given: ends, ends) for op, ends in KNOWN_RANGES.items()},
    **dict.fromkeys(("Exp", "Softplus", "Sqrt"), lambda given: (0.0, math.inf)),
    "Abs": lambda given: (0.0, max(map(abs, given[0]))),
    "Add": _add,
    "AveragePool": lambda given: hull([given[0], (0.0, 0.0)]),  # padding may count as 0
    "Clip": _clip,
    "Concat": hull,
    "Max": lambda given: (max(low for low, _ in given), max(high for _, high in given)),
    "Mean": hull,
    "Min": lambda given: (min(low for low, _ in given), min(high for _, high in given)),
    "Mul": _multiply,
    "Neg": lambda given: (-given[0][1], -given[0][0]),
    "Pad": lambda given: hull([given[0], given[2] if len(given) > 2 else (0.0, 0.0)]),
    "Relu": lambda given: (max(given[0][0], 0.0), max(given[0][1], 0.0)),
    "Sum": _add,
    "Where": lambda given: hull(given[1:3]),
}


def bounds_of(node: onnx.NodeProto, given: Iterable[Bounds]) -> Bounds:
    """Return the bounds of the first output of `node`, of any output of a Split.

    Args:
        node: an operator on float tensors.
        given: the bounds of its inputs, asked for only where they count.
    """
    if node.op_type not in _RULES or node.domain not in STANDARD_DOMAINS or not node.input:
        return UNKNOWN
    given = list(given)
    attributes = attributes_of(node)
    if node.op_type == "Clip" and len(given) == 1:  # below opset 11 its limits are attributes
        ends = (attributes.get(name) for name in ("min", "max"))
        given = [*given, *(UNKNOWN if end is None else (end, end) for end in ends)]
    if attributes.get("mode") == b"cubic" or {"extrapolation_value", "value"} & attributes.keys():
        return UNKNOWN
    if node.op_type == "Cast" and attributes["to"] not in FLOAT_CODES:
        return UNKNOWN
    return _RULES[node.op_type](given)

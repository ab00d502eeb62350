"""Constant folding of integer tensors, such as the bounds of a Slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array

Numbers = list[int | None]
"""None: a number that depends on data or on an open size."""

_MANY = 64


def evaluate_integers(tensor: gs.Tensor) -> Numbers | None:
    """Return the elements of an integer tensor of rank 0 or 1; None if even their number is unknown."""
    found: dict[int, Any] = {}
    left = [tensor]
    while left:
        current = left[-1]
        given = _operands(current)
        missing = [one for one in given if id(one) not in found]
        if missing:
            left += missing
        else:
            found[id(left.pop())] = _evaluate(current, [found[id(one)] for one in given])
    numbers = found[id(tensor)]
    return None if numbers is None else numbers.tolist()


def read_slice(node: gs.Node) -> tuple[int, int, int] | None:
    """Return the start, the end and the axis of a Slice along one; None if they are not all known."""
    given = [evaluate_integers(tensor) for tensor in node.inputs[1:]]
    numbers = [one[0] for one in given if one is not None and len(one) == 1]
    if len(given) < 3 or len(numbers) != len(given) or numbers[3:] not in ([], [1]):
        return None
    start, end, axis = numbers[:3]
    return None if start is None or end is None or axis is None else (start, end, axis)


def _operands(tensor: gs.Tensor) -> list[gs.Tensor]:
    """Return the operands that the elements of `tensor` are calculated from."""
    node = tensor.inputs[0] if tensor.inputs and not isinstance(tensor, gs.Constant) else None
    return list(node.inputs) if node is not None and node.op in _RULES else []


def _evaluate(tensor: gs.Tensor, given: list[Any]) -> Any:
    """Return the elements as a masked array, in which a mask stands for an unknown number; or None."""
    if isinstance(tensor, gs.Constant):
        values = constant_array(tensor) if len(tensor.shape) < 2 else None
        if values is None or values.size > _MANY or values.dtype.kind not in "iu":
            return None
        return np.ma.array(values.reshape(-1), np.int64)
    node = tensor.inputs[0] if tensor.inputs else None
    if node is not None and node.op == "Shape" and not node.attrs:
        shape = node.inputs[0].shape
        known = [isinstance(size, int) for size in shape or ()]
        sizes = [size if is_known else 0 for size, is_known in zip(shape or (), known, strict=True)]
        return None if shape is None else np.ma.array(sizes, np.int64, mask=np.logical_not(known))
    if node is None or node.op not in _RULES or any(numbers is None for numbers in given):
        return None
    try:
        numbers = _RULES[node.op](node, *given)
    except (IndexError, ValueError):  # operands that do not fit each other
        return None
    return None if numbers is None or numbers.size > _MANY else numbers


def _divide(node: gs.Node, one: Any, other: Any) -> Any:
    """ONNX does not define the rounding of a negative quotient."""
    return np.ma.masked_where((one < 0) | (other <= 0), one // np.where(other == 0, 1, other))


def _gather(node: gs.Node, values: Any, places: Any) -> Any:
    return None if np.ma.is_masked(places) else values[places.data]


def _keep(node: gs.Node, numbers: Any, *axes: Any) -> Any:
    return numbers if len(node.outputs[0].shape or ()) < 2 else None


def _cut(node: gs.Node, numbers: Any, *bounds: Any) -> Any:
    ends = [one.tolist() for one in bounds]
    known = len(ends) > 1 and all(len(one) == 1 and one[0] is not None for one in ends)
    return numbers[ends[0][0] : ends[1][0]] if known and ends[2:] in ([], [[0]], [[0], [1]]) else None


_RULES: dict[str, Callable[..., Any]] = {
    "Add": lambda node, one, other: one + other,
    "Sub": lambda node, one, other: one - other,
    "Mul": lambda node, one, other: one * other,
    "Div": _divide,
    **dict.fromkeys(("Cast", "Identity", "Squeeze", "Unsqueeze"), _keep),
    "Concat": lambda node, *parts: np.ma.concatenate(parts),  # type: ignore[no-untyped-call]
    "Gather": _gather,
    "Slice": _cut,
}

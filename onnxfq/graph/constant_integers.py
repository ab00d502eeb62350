"""Constant folding of integer tensors, such as the bounds of a Slice."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array

Numbers = list[int | None]
"""None: a number that depends on data or on an open size."""

_MANY = 64
_ARITHMETIC: dict[str, Callable[[int, int], int | None]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    # ONNX does not define the rounding of a negative quotient.
    "Div": lambda a, b: a // b if a >= 0 and b > 0 else None,
}


def evaluate_integers(tensor: gs.Tensor) -> Numbers | None:
    """Return the elements of an integer tensor of rank 0 or 1; None if even their number is unknown."""
    found: dict[int, Numbers | None] = {}
    left = [tensor]
    while left:
        current = left[-1]
        given = _operands(current)
        missing = [one for one in given if id(one) not in found]
        if missing:
            left += missing
        else:
            found[id(left.pop())] = _evaluate(current, [found[id(one)] for one in given])
    return found[id(tensor)]


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


def _evaluate(tensor: gs.Tensor, given: list[Numbers | None]) -> Numbers | None:
    if isinstance(tensor, gs.Constant):
        values = constant_array(tensor) if len(tensor.shape) < 2 else None
        if values is None or values.size > _MANY or values.dtype.kind not in "iu":
            return None
        return [int(value) for value in values.reshape(-1)]
    node = tensor.inputs[0] if tensor.inputs else None
    if node is None:
        return None
    if node.op == "Shape" and not node.attrs:
        shape = node.inputs[0].shape
        return None if shape is None else [size if isinstance(size, int) else None for size in shape]
    if node.op not in _RULES or any(numbers is None for numbers in given):
        return None
    numbers = _RULES[node.op](node, given)
    return None if numbers is None or len(numbers) > _MANY else numbers


def _calculate_elements(node: gs.Node, given: list[Any]) -> Numbers | None:
    size = max(len(numbers) for numbers in given)
    if any(len(numbers) not in (1, size) for numbers in given):
        return None
    left, right = (numbers * size if len(numbers) == 1 else numbers for numbers in given)
    return [
        None if a is None or b is None else _ARITHMETIC[node.op](a, b)
        for a, b in zip(left, right, strict=True)
    ]


def _gather_elements(node: gs.Node, given: list[Any]) -> Numbers | None:
    values, indices = given
    if any(index is None or not -len(values) <= index < len(values) for index in indices):
        return None
    return [values[index] for index in indices]


def _keep_elements(node: gs.Node, given: list[Any]) -> Numbers | None:
    numbers: Numbers = given[0]
    return numbers if len(node.outputs[0].shape or ()) < 2 else None


def _cut(node: gs.Node, given: list[Any]) -> Numbers | None:
    if (
        len(given) < 3
        or any(len(one) != 1 or one[0] is None for one in given[1:])
        or given[3:] not in ([], [[0]], [[0], [1]])
    ):
        return None
    return list(given[0][given[1][0] : given[2][0]])


_RULES: dict[str, Callable[[gs.Node, list[Any]], Numbers | None]] = {
    **dict.fromkeys(_ARITHMETIC, _calculate_elements),
    **dict.fromkeys(("Cast", "Identity", "Squeeze", "Unsqueeze"), _keep_elements),
    "Concat": lambda node, given: [number for numbers in given for number in numbers],
    "Gather": _gather_elements,
    "Slice": _cut,
}

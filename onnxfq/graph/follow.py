"""Value flow through nodes that only move, split or scale."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import MOVES, SCALES, SIZES, SPLITS

Node = Any
"""A graphsurgeon node, or an object with the same properties: name, op, inputs, outputs."""
Tensor = Any
"""A graphsurgeon tensor, or an object with the same properties: name, shape, inputs, outputs."""

FOLDED = frozenset({"Cast", "Div", "Gather", "Mul", "Slice", "Sqrt", "Squeeze", "Unsqueeze"})
"""Operators by which exporters compute a factor from sizes, folded to one number; Pow is not folded."""

Passes = Callable[[Node, int, bool], bool]
"""Predicate (node, slot, whole): whether the node only moves, splits or scales the values at the slot."""


def is_constant(tensor: Tensor) -> bool:
    """Tell whether `tensor` is a constant of a graphsurgeon graph."""
    return isinstance(tensor, gs.Constant)


def is_known_number(tensor: Tensor, is_known: Callable[[Tensor], bool] = is_constant) -> bool:
    """Tell whether `tensor` is one number known at build time: a constant, or folded from shapes."""
    if tensor.shape is None or any(size != 1 for size in tensor.shape):
        return False
    level, seen = [tensor], set()
    while level:
        current = level.pop()
        if current.name in seen or is_known(current):
            continue
        seen.add(current.name)
        maker = current.inputs[0] if current.inputs else None
        if maker is None or maker.op not in SIZES | FOLDED:
            return False
        level += [] if maker.op in SIZES else maker.inputs
    return True


def passes_through(
    node: Node, slot: int, whole: bool, is_number: Callable[[Tensor], bool] = is_known_number
) -> bool:
    """Tell whether `node` only moves or splits its input `slot`, or scales a split one."""
    if node.op in SCALES:
        return not whole and (slot == 0 or node.op == "Mul") and is_number(node.inputs[1 - slot])
    return slot == 0 and node.op in MOVES | SPLITS


def follow(
    node: Node, slot: int, whole: bool = False, passes: Passes = passes_through
) -> Iterator[tuple[Node, int, bool, bool]]:
    """Yield (node, slot, whole, goes on) for every slot that the values read by `node` at `slot` reach.

    Args:
        node: the first reader of the values.
        slot: the input of `node` that reads them.
        whole: whether nothing is split off yet.
        passes: whether a node only moves, splits or scales its input at a slot.
    """
    left, seen = [(node, slot, whole)], set()
    while left:
        current, place, is_whole = left.pop()
        if (id(current), place, is_whole) in seen:
            continue
        seen.add((id(current), place, is_whole))
        goes_on = passes(current, place, is_whole)
        yield current, place, is_whole, goes_on
        outputs = current.outputs if goes_on else ()
        behind = [reader for output in outputs for reader in readers_of(output)]
        left += [(*reader, is_whole and current.op not in SPLITS) for reader in reversed(behind)]


def follow_values(node: Node, slot: int) -> Iterator[Tensor]:
    """Yield all tensors that moves, splits and factors make from input `slot` of `node`."""
    for reached, _, _, goes_on in follow(node, slot):
        yield from reached.outputs if goes_on else ()


def readers_of(tensor: Tensor) -> Iterator[tuple[Node, int]]:
    """Yield every (node, slot) that reads the values of `tensor`, except nodes that read only its shape."""
    seen = {id(node): node for node in tensor.outputs if node.op not in SIZES}
    for node in seen.values():
        yield from ((node, slot) for slot, read in enumerate(node.inputs) if read is tensor)


def readers_behind(tensor: Tensor, moves: Collection[str]) -> Iterator[Node]:
    """Yield the nodes that read `tensor`, looking through nodes of the types in `moves`."""
    left, seen = [*reversed(tensor.outputs)], set()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op in moves:
            left += reversed(node.outputs[0].outputs)
        else:
            yield node

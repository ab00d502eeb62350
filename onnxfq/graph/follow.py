"""Where a tensor's values go through nodes that only move, split or scale them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import MOVES, SCALES, SIZES, SPLITS

Node = Any
"""A node of graphsurgeon, or another with its properties: name, op, inputs, outputs."""
Tensor = Any
"""A tensor of graphsurgeon, or another with its properties: name, shape, inputs, outputs."""

FOLDED = frozenset({"Cast", "Div", "Gather", "Mul", "Slice", "Sqrt", "Squeeze", "Unsqueeze"})
"""What makes a factor of sizes, as exporters write it, and is folded to one number; a Pow is not."""

Passes = Callable[[Node, int, bool], bool]
"""Tells whether a node only moves, splits or scales what it reads at a slot, which is still whole or not."""


def is_constant(tensor: Tensor) -> bool:
    """Tell whether `tensor` is a constant of a graphsurgeon graph."""
    return isinstance(tensor, gs.Constant)


def is_known_number(tensor: Tensor, is_known: Callable[[Tensor], bool] = is_constant) -> bool:
    """Tell whether `tensor` is one number that is known at build time: a constant, or folded from shapes."""
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
    """Tell whether `node` only moves or splits what it reads at `slot`, or scales it where it is split."""
    if node.op in SCALES:
        return not whole and (slot == 0 or node.op == "Mul") and is_number(node.inputs[1 - slot])
    return slot == 0 and node.op in MOVES | SPLITS


def follow(
    node: Node, slot: int, whole: bool = False, passes: Passes = passes_through
) -> Iterator[tuple[Node, int, bool, bool]]:
    """Yield every slot that the values read by `node` at `slot` reach: whether whole, and whether they go on.

    Args:
        node: the first to read them.
        slot: the input of it that reads them.
        whole: whether nothing is split off yet.
        passes: whether a node only moves, splits or scales what it reads at a slot.
    """
    goes_on = passes(node, slot, whole)
    yield node, slot, whole, goes_on
    for output in node.outputs if goes_on else ():
        for reader, place in readers_of(output):
            yield from follow(reader, place, whole and node.op not in SPLITS, passes)


def carried_from(node: Node, slot: int) -> Iterator[Tensor]:
    """Yield all that moves, splits and factors make of what `node` reads at `slot`."""
    for reached, _, _, goes_on in follow(node, slot):
        yield from reached.outputs if goes_on else ()


def readers_of(tensor: Tensor) -> Iterator[tuple[Node, int]]:
    """Yield all that reads the values of `tensor`, by slot; not what asks for its shape."""
    seen = {id(node): node for node in tensor.outputs if node.op not in SIZES}
    for node in seen.values():
        yield from ((node, slot) for slot, read in enumerate(node.inputs) if read is tensor)


def readers_behind(tensor: Tensor, moves: Collection[str]) -> Iterator[Node]:
    """Yield the nodes that read `tensor`, past those of the types in `moves`."""
    for node in tensor.outputs:
        if node.op in moves:
            yield from readers_behind(node.outputs[0], moves)
        else:
            yield node

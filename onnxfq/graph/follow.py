"""Where a tensor's values go through nodes that only move, split or scale them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import SIZES

MOVES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
SPLITS = frozenset({"Gather", "Slice", "Split"})
SCALES = frozenset({"Div", "Mul"})
FOLDED = frozenset({"Cast", "Div", "Gather", "Mul", "Slice", "Sqrt", "Squeeze", "Unsqueeze"})
"""What builders fold behind `SIZES` to one number, as exporters write a factor. None folds Pow."""


def carried_from(node: gs.Node, slot: int) -> Iterator[gs.Tensor]:
    """Yield all that moves, splits and factors make of what `node` reads at `slot`."""
    if passes_through(node, slot, False):
        for output in node.outputs:
            yield output
            for reader, place in readers_of(output):
                yield from carried_from(reader, place)


def follow(node: gs.Node, slot: int, whole: bool) -> Iterator[tuple[gs.Node, int, bool]]:
    """Yield every slot that the values read by `node` at `slot` reach, and whether they are still whole."""
    if not passes_through(node, slot, whole):
        yield node, slot, whole
        return
    whole = whole and node.op not in SPLITS
    for output in node.outputs:
        for reader, place in readers_of(output):
            yield from follow(reader, place, whole)


def passes_through(node: gs.Node, slot: int, whole: bool) -> bool:
    """Tell whether `node` only moves, splits or scales what it reads at `slot`."""
    if node.op in SCALES:
        by_number = (slot == 0 or node.op == "Mul") and is_known_number(node.inputs[1 - slot])
        return by_number and not whole
    return slot == 0 and node.op in MOVES | SPLITS


def readers_of(tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int]]:
    """Yield all that reads the values of `tensor`, by slot; not what asks for its shape."""
    seen = {id(node): node for node in tensor.outputs if node.op not in SIZES}
    for node in seen.values():
        yield from ((node, slot) for slot, read in enumerate(node.inputs) if read is tensor)


def is_known_number(tensor: gs.Tensor) -> bool:
    """Tell whether `tensor` is one number that a builder knows: a constant, or folded from shapes."""
    shape = tensor.shape
    if shape is None or not all(isinstance(size, int) for size in shape) or prod(shape) != 1:
        return False
    level, seen = [tensor], set()
    while level:
        current = level.pop()
        if isinstance(current, gs.Constant) or current.name in seen:
            continue
        seen.add(current.name)
        maker = current.inputs[0] if current.inputs else None
        if maker is None or maker.op not in SIZES | FOLDED:
            return False
        level += [] if maker.op in SIZES else list(maker.inputs)
    return True

"""The pattern of a product that is split, as one of queries, keys and values is: its bias, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from onnxfq.graph.follow import Node, Passes, Tensor, follow, passes_through, readers_of
from onnxfq.graph.ops import MOVES
from onnxfq.graph.slots import Use


@dataclass(frozen=True, eq=False)
class Part:
    """Input `slot` of `reader`, a tensor made of a product by moves, splits and factors alone.

    entry: the slot at which the way to it leaves the product. whole: whether nothing was split off.
    """

    entry: Use
    reader: Node
    slot: int
    tensor: Tensor
    whole: bool


@dataclass(frozen=True, eq=False)
class Projection:
    """What a product gives, behind its bias, and every reader of what is made of it.

    carried: `whole`, and all that moves, splits and factors make of it on the way to the parts.
    """

    whole: Tensor
    parts: tuple[Part, ...]
    carried: tuple[Tensor, ...]

    def is_read_by(self, takers: Collection[int]) -> bool:
        """Tell whether parts of it, never all of it, are read, and by `takers`, ids of nodes, alone."""
        return all(id(part.reader) in takers and not part.whole for part in self.parts)


def match_projection(
    product: Node, is_constant: Callable[[Tensor], bool], passes: Passes = passes_through
) -> Projection:
    """Return what becomes of the output of `product`.

    Args:
        product: a MatMul or Gemm.
        is_constant: whether a tensor is a constant, as a bias is.
        passes: whether a node only moves, splits or scales what it reads at a slot.
    """
    whole = _with_bias(product, is_constant)
    parts: list[Part] = []
    carried = [whole]
    for node, slot in readers_of(whole):
        for reader, place, is_whole, goes_on in follow(node, slot, True, passes):
            if goes_on:
                carried += reader.outputs
            else:
                parts.append(Part(Use(node.name, slot), reader, place, reader.inputs[place], is_whole))
    return Projection(whole, tuple(parts), tuple(carried))


def only_readers(tensor: Tensor) -> Iterator[Node]:
    """Yield the only reader of `tensor`, the only one of what that gives, and so on."""
    while len(tensor.outputs) == 1:
        yield tensor.outputs[0]
        tensor = tensor.outputs[0].outputs[0]


def _with_bias(product: Node, is_constant: Callable[[Tensor], bool]) -> Tensor:
    """Return the output of `product`, behind its bias where an Add of a constant follows."""
    for reader in only_readers(product.outputs[0]):
        if reader.op == "Add" and any(map(is_constant, reader.inputs)):
            return reader.outputs[0]
        if reader.op not in MOVES:
            break
    return product.outputs[0]

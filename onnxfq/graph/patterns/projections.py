"""Pattern of a split projection, such as QKV: its bias, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from onnxfq.graph.follow import Node, Passes, Tensor, follow, passes_through, readers_of
from onnxfq.graph.ops import MOVES
from onnxfq.graph.slots import Use


@dataclass(frozen=True, eq=False)
class Part:
    """Input `slot` of `reader`, a tensor made from a product by moves, splits and factors alone.

    Attributes:
        entry: the slot at which the path to the part leaves the product.
        reader: the node that reads the part.
        slot: the input of `reader`.
        tensor: the part.
        whole: whether nothing was split off.
    """

    entry: Use
    reader: Node
    slot: int
    tensor: Tensor
    whole: bool


@dataclass(frozen=True, eq=False)
class Projection:
    """The output of a product behind its bias, and every reader of its parts.

    Attributes:
        whole: the output, behind the bias.
        parts: the readers.
        carried: `whole`, and all tensors that moves, splits and factors make from it on the way to the parts.
    """

    whole: Tensor
    parts: tuple[Part, ...]
    carried: tuple[Tensor, ...]

    def is_read_by(self, takers: Collection[int]) -> bool:
        """Tell whether only `takers`, ids of nodes, read it, and each only a part."""
        return all(id(part.reader) in takers and not part.whole for part in self.parts)


def match_projection(
    product: Node, is_constant: Callable[[Tensor], bool], passes: Passes = passes_through
) -> Projection:
    """Return the projection that starts at the output of `product`.

    Args:
        product: a MatMul or Gemm.
        is_constant: whether a tensor is a constant, as a bias is.
        passes: whether a node only moves, splits or scales its input at a slot.
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
    """Yield the only reader of `tensor`, then the only reader of its output, and so on."""
    while len(tensor.outputs) == 1:
        yield tensor.outputs[0]
        tensor = tensor.outputs[0].outputs[0]


def _with_bias(product: Node, is_constant: Callable[[Tensor], bool]) -> Tensor:
    """Return the output of `product`, or the output of the Add of a constant that follows."""
    for reader in only_readers(product.outputs[0]):
        if reader.op == "Add" and any(map(is_constant, reader.inputs)):
            return reader.outputs[0]
        if reader.op not in MOVES:
            break
    return product.outputs[0]

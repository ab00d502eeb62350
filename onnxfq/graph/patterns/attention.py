"""Patterns of attention: two products around scale, mask and Softmax, and split projections as QKV."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import onnx_graphsurgeon as gs

from onnxfq.graph.follow import Node, Passes, Tensor, follow, passes_through, readers_of
from onnxfq.graph.names import Use
from onnxfq.graph.ops import MOVES

N = TypeVar("N")

PRODUCTS = frozenset({"MatMul"})
_STEPS = 6


@dataclass(frozen=True, eq=False)
class Attention(Generic[N]):
    """Two products with a Softmax between: queries by keys, and attention weights by values."""

    scores: N
    softmax: N
    mix: N


@dataclass(frozen=True)
class AttentionForm(Generic[N]):
    """Spelling of attention in one kind of graph; the defaults match ONNX exports.

    Attributes:
        makers: the node behind each input of a node, None if there is none.
        op: the operation of a node, "MatMul" for a product.
        softmax: operations that count as a Softmax.
        before: operations allowed between the scores and the Softmax.
        behind: operations allowed between the Softmax and the mix.
    """

    makers: Callable[[N], Sequence[N | None]]
    op: Callable[[N], Any] = attrgetter("op")
    softmax: Collection[Any] = ("Softmax",)
    # Scale, mask and operators that build masks; masks of shifted windows are added to all windows.
    before: Collection[Any] = ("Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Where")
    # torch's newer exporter replaces the NaN of fully masked rows behind the Softmax.
    behind: Collection[Any] = ("Cast", "Dropout", "Identity", "Where")

    def find_above(
        self, level: Sequence[N | None], wanted: Collection[Any], past: Collection[Any], steps: int = _STEPS
    ) -> N | None:
        """Return the nearest node with a `wanted` operation, in `level` or above it past those in `past`."""
        for _ in range(steps):
            nodes = [node for node in level if node is not None]
            for node in nodes:
                if self.op(node) in wanted:
                    return node
            level = [maker for node in nodes if self.op(node) in past for maker in self.makers(node)]
        return None


def makers_of(node: gs.Node) -> list[gs.Node | None]:
    """Return the node behind each input of `node`, None for constants and inputs of the graph."""
    return [tensor.inputs[0] if tensor.inputs else None for tensor in node.inputs]


def find_attentions(nodes: Iterable[gs.Node]) -> Iterator[Attention[gs.Node]]:
    """Yield every attention among `nodes` of a float model that is written as products and a Softmax."""
    form = AttentionForm(makers_of)
    return filter(None, (match_attention(node, form) for node in nodes))


def match_attention(mix: N, form: AttentionForm[N], reader: N | None = None) -> Attention[N] | None:
    """Return the attention that ends in `mix`; None if it ends none.

    Args:
        mix: the candidate for the second product.
        form: the spelling of attention in the graph.
        reader: the node whose first input is the attention weights, such as the DequantizeLinear of their
            pair; `mix` itself when left out.
    """
    if form.op(mix) not in PRODUCTS:
        return None
    level = form.makers(mix if reader is None else reader)[:1]
    softmax = form.find_above(level, form.softmax, form.behind)
    level = [] if softmax is None else form.makers(softmax)[:1]
    scores = form.find_above(level, PRODUCTS, form.before)
    return None if softmax is None or scores is None else Attention(scores, softmax, mix)


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

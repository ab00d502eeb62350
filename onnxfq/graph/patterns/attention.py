"""The pattern of attention: MatMul of queries and keys, scale, mask, Softmax, MatMul with the values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import onnx_graphsurgeon as gs

N = TypeVar("N")

PRODUCTS = frozenset({"MatMul"})
_STEPS = 6


@dataclass(frozen=True, eq=False)
class Attention(Generic[N]):
    """Two products with a Softmax between: queries by keys, and what comes of it by values."""

    scores: N
    softmax: N
    mix: N


@dataclass(frozen=True)
class Form(Generic[N]):
    """How a kind of graph writes attention; as exporters write it in ONNX unless told otherwise.

    makers: the node behind each input of a node, None where there is none. op: what a node does, "MatMul" for
    a product; the others are sets of that: before may stand between the scores and the Softmax, behind
    between the Softmax and the mix.
    """

    makers: Callable[[N], Sequence[N | None]]
    op: Callable[[N], Any] = attrgetter("op")
    softmax: Collection[Any] = ("Softmax",)
    # Scale, mask and what masks are made with; those of shifted windows are added to all windows of an image.
    before: Collection[Any] = ("Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Where")
    # The newer exporter of torch replaces NaN of rows that see nothing behind the Softmax.
    behind: Collection[Any] = ("Cast", "Dropout", "Identity", "Where")

    def find_above(
        self, level: Sequence[N | None], wanted: Collection[Any], past: Collection[Any], steps: int = _STEPS
    ) -> N | None:
        """Return the nearest node that does what is `wanted`, in `level` or above it past ops in `past`."""
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
    """Yield every attention of a float model among `nodes` that is written as products and a Softmax."""
    form = Form(makers_of)
    return filter(None, (match_attention(node, form) for node in nodes))


def match_attention(mix: N, form: Form[N], reader: N | None = None) -> Attention[N] | None:
    """Return the attention that ends in `mix`; None where it ends none.

    Args:
        mix: what may be the second product.
        form: how the graph writes attention.
        reader: the node whose first input the weights enter by, such as the DequantizeLinear of their pair;
            `mix` itself when left out.
    """
    if form.op(mix) not in PRODUCTS:
        return None
    level = form.makers(mix if reader is None else reader)[:1]
    softmax = form.find_above(level, form.softmax, form.behind)
    level = [] if softmax is None else form.makers(softmax)[:1]
    scores = form.find_above(level, PRODUCTS, form.before)
    return None if softmax is None or scores is None else Attention(scores, softmax, mix)

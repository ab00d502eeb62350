"""The pattern of attention: MatMul of queries and keys, scale, mask, Softmax, MatMul with the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

import onnx_graphsurgeon as gs

N = TypeVar("N")

# Between the scores and Softmax, as exporters write it: scale, mask, and what masks are made with; masks of
# shifted windows are added to the scores of all windows of an image.
_BEFORE_SOFTMAX = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Where"})
# The newer exporter of torch replaces NaN of rows that see nothing behind the Softmax.
_BEHIND_SOFTMAX = frozenset({"Cast", "Dropout", "Identity", "Where"})
_STEPS = 6


@dataclass(frozen=True, eq=False)
class Attention(Generic[N]):
    """Two products with a Softmax between: queries by keys, and what comes of it by values."""

    scores: N
    softmax: N
    mix: N


@dataclass(frozen=True)
class Form(Generic[N]):
    """How a kind of graph writes attention.

    makers: the node behind each input of a node, None where there is none. before, behind: whether a node
    may stand before the Softmax and behind it.
    """

    makers: Callable[[N], Sequence[N | None]]
    is_product: Callable[[N], bool]
    is_softmax: Callable[[N], bool]
    before: Callable[[N], bool]
    behind: Callable[[N], bool]


def form_of_ops(
    makers: Callable[[N], Sequence[N | None]],
    behind: Iterable[str] = _BEHIND_SOFTMAX,
    op: Callable[[N], str] = attrgetter("op"),
) -> Form[N]:
    """Return the form of a graph of ONNX's operators.

    Args:
        makers: the node behind each input of a node, None where there is none.
        behind: op types that may stand between the Softmax and the second product.
        op: the op type of a node.
    """

    def is_any_of(ops: Iterable[str]) -> Callable[[N], bool]:
        return lambda node: op(node) in ops

    products, softmax = is_any_of(("MatMul",)), is_any_of(("Softmax",))
    return Form(makers, products, softmax, is_any_of(_BEFORE_SOFTMAX), is_any_of(behind))


def makers_of(node: gs.Node) -> list[gs.Node | None]:
    """Return the node behind each input of `node`, None for constants and inputs of the graph."""
    return [tensor.inputs[0] if tensor.inputs else None for tensor in node.inputs]


FLOAT_FORM = form_of_ops(makers_of)
"""Attention as exporters write it in float models."""


def find_attentions(nodes: Iterable[gs.Node]) -> Iterator[Attention[gs.Node]]:
    """Yield every attention of a float model among `nodes` that is written as products and a Softmax."""
    return filter(None, (match_attention(node, FLOAT_FORM) for node in nodes))


def match_attention(mix: N, form: Form[N], reader: N | None = None) -> Attention[N] | None:
    """Return the attention that ends in `mix`; None where it ends none.

    Args:
        mix: what may be the second product.
        form: how the graph writes attention.
        reader: the node whose first input the weights enter by, such as the DequantizeLinear of their pair;
            `mix` itself when left out.
    """
    if not form.is_product(mix):
        return None
    above = form.makers(mix if reader is None else reader)[:1]
    softmax = find_above(above, form.makers, form.is_softmax, form.behind)
    if softmax is None:
        return None
    scores = find_above(form.makers(softmax)[:1], form.makers, form.is_product, form.before)
    return None if scores is None else Attention(scores, softmax, mix)


def find_above(
    level: Sequence[N | None],
    makers: Callable[[N], Sequence[N | None]],
    wanted: Callable[[N], bool],
    passes: Callable[[N], bool],
    steps: int = _STEPS,
) -> N | None:
    """Return the nearest node that is `wanted`, in `level` or above it past nodes that pass."""
    for _ in range(steps):
        nodes = [node for node in level if node is not None]
        for node in nodes:
            if wanted(node):
                return node
        level = [maker for node in nodes if passes(node) for maker in makers(node)]
    return None

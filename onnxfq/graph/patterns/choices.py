"""Choices: tensors where noise becomes one of several values, which then move elements or change sizes.

The index of an expert is right or wrong. The noise of the expert shows only against a float model that chose
the same one. Therefore the choices of the float model are given to the models that are compared with it, if a
product lies behind them. A last choice of boxes is an output like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import NamedTuple

import onnx
from onnx import TensorProto

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, list_nodes
from onnxfq.graph.ops import (
    MOVES,
    QUANTIZED_OPS,
    RECURRENT_OPS,
    REPEATS,
    SPLITS,
    STANDARD_DOMAINS,
    WEIGHTED_INPUTS,
)
from onnxfq.graph.segments import list_reads
from onnxfq.graph.walk import nodes_inside
from onnxfq.numerics.float_types import FLOAT_CODES

SELECTING = frozenset({"Compress", "NonMaxSuppression", "NonZero", "TopK", "Unique"})
"""Operators whose results change places, or their number, with their values."""

CHOOSING = SELECTING | {"ArgMax", "ArgMin", "Multinomial"}
"""Operators that choose by values."""

FLOATS = FLOAT_CODES | {TensorProto.DOUBLE, TensorProto.UNDEFINED}
"""Element types that hold noise in dB; tensors of unknown type count among them."""

_STEERING = {"Compress": 1, "If": 0, "Loop": 1}
"""Operator -> its input of booleans that decides how much it returns, or what it runs."""

_INDICES = {"ArgMax": 0, "ArgMin": 0, "NonMaxSuppression": 0, "NonZero": 0, "TopK": 1, "Unique": 1}
"""Operator -> its output of indices."""

ROUNDING = frozenset({"Ceil", "Floor", "Round"})
"""Operators that make whole numbers of floats."""
KEEPS_WHOLE = (
    MOVES
    | REPEATS
    | SPLITS
    | set("Add Cast Clip Concat CumSum Max Min Mul ReduceMax ReduceMin ReduceSum Relu Sub Where".split())
)
"""Operators that give whole numbers of whole numbers, such as the length of a sound of rounded durations."""


class ChoiceType(NamedTuple):
    """The type of a tensor that is given.

    Attributes:
        kind: ONNX element type.
        rank: number of axes; None if it is unknown.
        follows: whether it follows from other choices; quantizers may stand between.
    """

    kind: int
    rank: int | None
    follows: bool = False


_UNQUANTIZED = {"ai.onnx.ml", "ai.onnx.contrib"}
"""Domains of classical machine learning and of texts: no operator there is quantized."""


def multiplies(node: onnx.NodeProto) -> bool:
    """Tell whether noise of quantization can begin at `node`."""
    if node.domain not in STANDARD_DOMAINS:
        return node.domain not in _UNQUANTIZED
    return node.op_type in WEIGHTED_INPUTS.keys() | RECURRENT_OPS


class ChoiceFinder:
    """Choices of the nodes of one main graph that can be given to another model of the same tensors.

    Attributes:
        left: by node whose choices are not given although a product depends on them, the reason.
    """

    def __init__(self, graph: onnx.GraphProto, index: GraphIndex, present: Container[str] | None) -> None:
        """Find what products depend on.

        Args:
            graph: the main graph.
            index: of it.
            present: tensors that all models have; None for any.
        """
        self._index, self._present = index, present
        self.left: dict[str, str] = {}
        self._ahead: set[str] = set()
        for node in reversed(graph.node):
            if any(map(multiplies, (node, *nodes_inside(node)))) or not self._ahead.isdisjoint(node.output):
                self._ahead |= list_reads(node)

    def find(self, node: onnx.NodeProto, noisy: Collection[str]) -> dict[str, ChoiceType]:
        """Return the choices of `node`, which reads `noisy`, with their types; {} if they are final."""
        inner = nodes_inside(node)
        if any(_choose_before(node, body) for body in bodies(node)):
            self.left[node.name] = "it chooses in its body"
        if self._ahead.isdisjoint(node.output) and not any(map(multiplies, inner)):
            return {}
        if not self._ahead.isdisjoint(node.output) and any(one.op_type in CHOOSING for one in inner):
            self.left[node.name] = "it chooses in its body"
        if (steer := self.steer(node)) in noisy:
            found = {steer: int(TensorProto.BOOL)}
        elif inner or node.op_type in QUANTIZED_OPS or all(map(self._is_whole, noisy)):
            return {}  # numbers of a grid, which other operators move
        else:
            found = {name: kind for name in filter(None, node.output) if (kind := self._chosen(node, name))}
            found |= {name: self._index.types[name] for name in self._roundings(node) if found}
        why = self._explain_left(node, found) if found or node.op_type == "Unique" else ""
        if why:
            self.left[node.name] = why
        return {} if why else {name: ChoiceType(kind, self._rank(name)) for name, kind in found.items()}

    def selects(self, node: onnx.NodeProto, noisy: Collection[str]) -> bool:
        """Tell whether noise in what `node` reads changes the places of what it returns.

        Sorted values without their indices stay in place: none moves by more than the largest error.
        """
        if node.op_type == "Compress":
            return self.steer(node) in noisy
        is_read = node.op_type != "TopK" or self._is_used(node.output[1])
        return node.op_type in SELECTING and bool(noisy) and is_read

    @staticmethod
    def steer(node: onnx.NodeProto) -> str:
        """Return the booleans that decide how much `node` returns, or what it runs; "" without any."""
        slot = _STEERING.get(node.op_type, len(node.input))
        return node.input[slot] if slot < len(node.input) else ""

    def _is_used(self, name: str) -> bool:
        index = self._index
        return bool(name) and (name in index.readers or name in index.outputs or name in index.captured)

    def _rank(self, name: str) -> int | None:
        shape = self._index.shape(name)
        return None if shape is None else len(shape)

    def _is_whole(self, name: str) -> bool:
        return self._index.types.get(name, 0) not in (*FLOATS, TensorProto.BOOL)

    def _chosen(self, node: onnx.NodeProto, name: str) -> int:
        """Return the type of an output of integers or texts that is used, 0 for others."""
        kind = self._index.types.get(name, 0)
        if not kind and name in node.output[_INDICES.get(node.op_type, len(node.output)) :]:
            kind = TensorProto.INT64
        is_chosen = kind not in (*FLOATS, TensorProto.BOOL) and self._is_used(name)
        return int(kind) if is_chosen else 0

    def _explain_left(self, node: onnx.NodeProto, found: Collection[str]) -> str:
        if node.op_type == "Multinomial":
            return "it draws by chance"
        if node.op_type == "Unique" and self._is_used(node.output[0]) and not {*node.output[1:2]} & {*found}:
            return "it returns values without their indices"
        lacking = [name for name in found if self._present is not None and name not in self._present]
        return f"another model lacks {lacking[0]!r}" if lacking else ""

    def _roundings(self, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the rounded floats that a Cast to integers comes from."""
        waiting = [*node.input] if node.op_type == "Cast" else []
        seen = set(waiting)
        while waiting:
            maker = self._index.makers.get(waiting.pop())
            if maker is not None and maker.op_type in ROUNDING:
                yield maker.output[0]
            elif maker is not None and maker.op_type in KEEPS_WHOLE:
                waiting += [name for name in maker.input if name not in seen]
                seen.update(maker.input)


def _choose_before(node: onnx.NodeProto, body: onnx.GraphProto) -> bool:
    """Tell whether a product in `body` depends on a choice in it; in a loop all depend on the turn before."""
    inner = list_nodes(body)
    if node.op_type != "If":
        return any(one.op_type in CHOOSING for one in inner) and any(map(multiplies, inner))
    chosen: set[str] = set()
    for one in inner:
        follows = not chosen.isdisjoint(one.input)
        if follows and multiplies(one):
            return True
        if follows or one.op_type in CHOOSING:
            chosen.update(filter(None, one.output))
    return False

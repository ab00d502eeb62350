"""Floats that become sizes, indices and lengths: arithmetic on shapes, and what is rounded to whole numbers.

A pair there, or a half type, changes the shape of an output: one step too many is one more frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx
from onnx import TensorProto

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import MOVES, REPEATS, SPLITS, STANDARD_DOMAINS
from onnxfq.graph.patterns.choices import KEEPS_WHOLE, ROUNDING

# uint8 and int8 are colours and quantized numbers, which count nothing.
_WHOLE = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64})
_ENDS = {
    "Ceil": slice(0, 1),
    "Floor": slice(0, 1),
    "Range": slice(0, 3),
    "Resize": slice(2, None),
    "Round": slice(0, 1),
    "Upsample": slice(1, None),
}
"""Operator -> inputs that are whole numbers in effect; a Cast to one of `_WHOLE` too."""
_PASSED = MOVES | SPLITS | REPEATS
_PASSED |= set(
    "Abs Add Cast Ceil Clip Concat CumSum Div Exp Floor Log Max Min Mul Neg Pow Range Relu".split()
)
_PASSED |= set(
    "Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Round Sigmoid Softplus".split()
)
_PASSED |= set("Sqrt Sub Sum Where".split())
"""Operators that the walk upwards passes: they compute each number from few, and multiply no matrix."""
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


class WholeNumbers(NamedTuple):
    """Nodes and tensors that compute whole numbers.

    Attributes:
        nodes: name -> the operator that rounds what the node computes.
        tensors: that these nodes read and compute.
    """

    nodes: dict[str, str]
    tensors: set[str]

    def explain(self, node: str) -> str:
        """Return why a node stays in float as it is; empty for one that computes no whole number."""
        end = self.nodes.get(node)
        return f"its numbers become whole at {end}, as sizes, indices and lengths do" if end else ""


def find_whole_numbers(index: GraphIndex) -> WholeNumbers:
    """Walk upwards from each operator that rounds; products, choices and sizes of tensors end the walk."""
    found, counts = WholeNumbers({}, set()), _find_counts(index)
    for node in index.nodes:
        reads = [name for name in node.input if name in counts] if node.op_type in _COMPARING else []
        reads = reads or _list_rounded(node)
        if not any(name not in index.constants for name in reads):
            continue
        where = f"{node.op_type} {node.name!r}"
        found.nodes.setdefault(node.name, where)
        found.tensors.update(reads)
        for maker in _walk_up(index, reads, found.nodes):
            found.nodes.setdefault(maker.name, where)
            found.tensors.update((*_list_data(maker), *maker.output))
    return found


def _find_counts(index: GraphIndex) -> set[str]:
    """Return the floats that hold whole numbers: two grids would make equal ones differ."""
    counts = {name for name, kind in index.types.items() if kind in _WHOLE} - index.constants.keys()
    for node in index.nodes:
        read = [name for name in node.input if name and name not in index.constants]
        if node.op_type in ROUNDING or (node.op_type in KEEPS_WHOLE and read and counts.issuperset(read)):
            counts.update(node.output)
    return {name for name in counts if index.types.get(name) not in _WHOLE}


def _walk_up(index: GraphIndex, names: list[str], known: dict[str, str]) -> Iterator[onnx.NodeProto]:
    waiting = list(names)
    while waiting:
        maker = index.makers.get(waiting.pop())
        if maker is None or maker.op_type not in _PASSED or maker.domain not in STANDARD_DOMAINS:
            continue
        seen = maker.name in known
        yield maker
        if not seen:
            waiting += _list_data(maker)


def _list_rounded(node: onnx.NodeProto) -> list[str]:
    if node.domain not in STANDARD_DOMAINS:
        return []
    rounds = node.op_type == "Cast" and attributes_of(node)["to"] in _WHOLE
    part = slice(0, 1) if rounds else _ENDS.get(node.op_type, slice(0, 0))
    return [name for name in node.input[part] if name]


def _list_data(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a passed operator whose numbers are in its result."""
    first = slice(1, 3) if node.op_type == "Where" else slice(0, 1)
    moves = node.op_type in (MOVES | SPLITS | REPEATS | {"Cast", "Where"})
    return [name for name in (node.input[first] if moves else node.input) if name]

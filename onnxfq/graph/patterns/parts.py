"""`OutputPart`: what a last Concat puts side by side in an output, found by its place in the output.

Boxes in pixels hide the noise of scores next to them. A part is a range of the output itself, so that every
model with this output has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.graph.index import GraphIndex, Shape
from onnxfq.graph.ops import QDQ_OPS, RESHAPES, STANDARD_DOMAINS
from onnxfq.graph.patterns.makers import name_tensor
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.support.groups import group_pairs

MOST_PARTS = 16
"""Parts of an output; one with more stays whole."""

_DEPTH = 3
"""Concats in a row that are followed."""

SQUASHING = frozenset({"HardSigmoid", "LogSoftmax", "Sigmoid", "Softmax", "Tanh"})
"""Operators with as many outputs as inputs, in their places, that limit them."""

SHIFTS = frozenset({"Add", "Div", "Mul", "Sub"})
"""Operators that with a constant only scale or shift."""

_OF_WEIGHTS = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose"})
_IN_PLACE = SQUASHING | QDQ_OPS | {"Cast", "Dropout", "Identity"}
_POOLS = frozenset({"AveragePool", "GlobalAveragePool"})

Range = tuple[int, int | None]
"""First index, and the one behind the last; negative from the end, None for the end."""

WHOLE: Range = (0, None)


@dataclass(frozen=True)
class OutputPart:
    """A range of an output.

    Attributes:
        source: the input of the Concat that it comes from, in words.
        ranges: by axis of the output.
        alike: whether such a part comes from several places, as from each level of a detector.
        place: which one it is of several with this source; empty if it is the only one.
    """

    source: str
    ranges: Mapping[int, Range]
    alike: bool = False
    place: str = ""

    def of(self, output: NDArray[Any]) -> NDArray[Any]:
        """Return the part of `output`."""
        return output[tuple(slice(*self.ranges.get(axis, WHOLE)) for axis in range(output.ndim))]

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"part {self.place}{self.source}{' and alike' * self.alike}"


def part_sums(
    parts: Sequence[OutputPart], reference: NDArray[Any], candidate: NDArray[Any]
) -> list[ErrorSums]:
    """Return the errors of each part of an output, or of the whole of an output without parts."""
    if not parts:
        return [ErrorSums.from_arrays(reference, candidate)]
    return [ErrorSums.from_arrays(part.of(reference), part.of(candidate)) for part in parts]


Axes = Mapping[int, int]
"""Axis of a tensor -> axis of the output, for those that the operators between leave whole."""


class PartFinder:
    """Parts of the outputs of one graph with inferred shapes."""

    def __init__(self, index: GraphIndex, noisy: set[str]) -> None:
        """Take the tables of the graph, and the tensors that quantization changes; others are constant."""
        self._index, self._noisy = index, noisy
        self._sizes: Shape = ()

    def find(self, output: str) -> tuple[OutputPart, ...]:
        """Return the parts of an output; none for one that stays whole."""
        shape = self._index.shape(output)
        if shape is None:
            return ()
        self._sizes = shape
        found = self._split(output, {axis: axis for axis in range(len(shape))}, _DEPTH)
        if not 1 < len(found) <= MOST_PARTS:
            return ()
        same = group_pairs((part.source, place) for place, part in enumerate(found))
        several = {
            at: f"{n} of {len(ats)}, " for ats in same.values() if ats[1:] for n, at in enumerate(ats, 1)
        }
        return tuple(replace(part, place=several.get(at, "")) for at, part in enumerate(found))

    def counts_classes(self, output: str) -> bool:
        """Tell whether the last axis of an output of rank 2 or 3 is made by a product, as scores of classes.

        Behind a sigmoid or tanh each element stands alone, as in a mask or a box; behind another function, a
        normalization or a sum of two tensors the elements are features, as of an embedding.
        """
        rank = len(self._index.shape(output) or ())
        step: tuple[str, Axes] | None = (output, {rank - 1: rank - 1} if rank in (2, 3) else {})
        while step is not None and rank - 1 in step[1].values():
            tensor, axes = step
            node = self._index.makers.get(tensor)
            if node is None or node.op_type in SQUASHING - {"LogSoftmax", "Softmax"}:
                return False
            axis = next(mine for mine, other in axes.items() if other == rank - 1)
            if node.op_type in ("Gemm", "MatMul"):
                depth = len(self._index.shape(tensor) or ())
                # Rows compared with rows, as images with texts, choose among these.
                return axis == depth - 1 and (rank == depth == 2 or self._is_weight(node.input[1]))
            if node.op_type == "Conv":
                return rank == 2 and axis == 1
            if node.op_type in _POOLS:
                step = node.input[0], {mine: other for mine, other in axes.items() if mine < 2}
            else:
                step = self._before(node, axes)
        return False

    def _is_weight(self, name: str) -> bool:
        return self._index.origin(name, _OF_WEIGHTS) in self._index.stored

    def _split(self, tensor: str, axes: Axes, depth: int) -> list[OutputPart]:
        node = self._index.makers.get(tensor)
        while node is not None and node.op_type != "Concat":
            step = self._before(node, axes)
            if step is None:
                return []
            tensor, axes = step
            node = self._index.makers.get(tensor)
        if node is None or node.domain not in STANDARD_DOMAINS or not depth:
            return []
        return self._split_concat(node, axes, depth - 1)

    def _split_concat(self, node: onnx.NodeProto, axes: Axes, depth: int) -> list[OutputPart]:
        """Return the parts that a Concat joins, with those inside of them.

        If all inputs have the same parts, kinds such as boxes and scores cross places such as the levels of a
        detector. Places outnumber kinds: the shorter axis is divided.
        """
        shapes = [self._index.shape(name) for name in node.input]
        if any(shape is None for shape in shapes) or len(node.input) > MOST_PARTS:
            return []
        axis = next(int(one.i) for one in node.attribute if one.name == "axis")
        axis %= max(len(shapes[0] or ()), 1)
        apart = {mine: other for mine, other in axes.items() if mine != axis}
        inner = [self._split(name, apart, depth) for name in node.input]
        kinds = [[part.ranges for part in parts] for parts in inner]
        target = axes.get(axis)
        ranges = None if target is None else _lay_out([(shape or ())[axis] for shape in shapes])
        if kinds[0] and all(kind == kinds[0] for kind in kinds):
            if ranges is None or self._length(target) > min(map(self._length, kinds[0][0])):
                return [replace(part, alike=True) for part in inner[0]]
            inner = [[] for _ in inner]
        if target is None or ranges is None:
            return []
        parts = []
        for name, own, below in zip(node.input, ranges, inner, strict=True):
            here = [OutputPart(name_tensor(name, self._index), {})] if len(below) < 2 else below
            parts += [replace(part, ranges={**part.ranges, target: own}) for part in here]
        return parts

    def _length(self, axis: int | None) -> float:
        """Return the length of an axis of the output; inf if it is open."""
        size = None if axis is None else self._sizes[axis]
        return math.inf if size is None else size

    def _before(self, node: onnx.NodeProto, axes: Axes) -> tuple[str, Axes] | None:
        """Return what `node` reads, with its axes; None if it does more than move, scale or squash."""
        if node.domain not in STANDARD_DOMAINS:
            return None
        read = [name for name in node.input if name in self._noisy]
        if len(read) != 1 or (node.op_type not in SHIFTS and read[0] != node.input[0]):
            return None
        given, made = self._index.shape(read[0]), self._index.shape(node.output[0])
        if given is None or made is None:
            return None
        pairs = self._pair_axes(node, given, made)
        if pairs is None:
            return None
        return read[0], {mine: axes[other] for mine, other in pairs.items() if other in axes}

    def _pair_axes(self, node: onnx.NodeProto, given: Shape, made: Shape) -> dict[int, int] | None:
        """Return the axes of the input that an operator leaves whole, each with its axis of the output."""
        same = {axis: axis for axis in range(len(given))}
        if node.op_type in _IN_PLACE:
            return same
        if node.op_type in SHIFTS:
            return same if given == made else None  # a constant of more axes repeats it
        if node.op_type == "Transpose":
            order = [*reversed(same)]
            for one in node.attribute:
                order = list(one.ints) if one.name == "perm" else order
            return {mine: other for other, mine in enumerate(order)}
        if node.op_type in RESHAPES:
            return dict(_whole_axes(given, made))
        if node.op_type == "Slice":
            return {axis: axis for axis in same if given[axis] is not None and given[axis] == made[axis]}
        return None


def _whole_axes(given: Shape, made: Shape) -> Iterator[tuple[int, int]]:
    """Yield the axes that a change of shape leaves whole: as long, with as many elements before."""
    for start in (1, -1):  # from the front, and from the back
        sizes = [list(shape)[::start] for shape in (given, made)]
        before = [[_product(size[:at]) for at in range(len(size))] for size in sizes]
        for i, length in enumerate(sizes[0]):
            for j, other in enumerate(sizes[1]):
                known = length is not None and length > 1 and before[0][i] is not None
                if known and length == other and before[0][i] == before[1][j]:
                    yield (i, j) if start == 1 else (len(given) - 1 - i, len(made) - 1 - j)


def _product(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _lay_out(sizes: Sequence[int | None]) -> list[Range] | None:
    """Return where pieces of these sizes stand in a row; None if two of them are unknown."""
    if sum(size is None for size in sizes) > 1 or 0 in sizes:
        return None
    found: list[Range] = []
    start, behind = 0, False
    for at, size in enumerate(sizes):
        rest = sum(one or 0 for one in sizes[at + 1 :])
        end = (-rest or None) if size is None or behind else start + size
        found.append((start, end))
        behind = behind or size is None
        start = end if end is not None and behind else start + (size or 0)
    return found

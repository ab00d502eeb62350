"""`NumberGrid`: real values of the quantized numbers that a model computes, for each tensor.

An operator that moves, picks, orders or compares numbers reads and gives numbers of one grid. The operator
that quantizes them has it, or else the first one that dequantizes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx

from onnxfq.errors import ModelError
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.ops import DATA_MOVEMENT, SIZES, STANDARD_DOMAINS


@dataclass(frozen=True)
class NumberGrid:
    """Grid of the quantized numbers of one tensor: a number stands for (number - zero) * scale.

    Attributes:
        scale: the real size of a step.
        zero: the number that stands for 0.
        kind: type of the numbers.
        floats: type of the real values.
        is_dynamic: every run has another scale; the numbers stand for x itself, in units of 1.
        ends: the smallest and the largest number, if they are fewer than the type has.
    """

    scale: float = 1.0
    zero: float = 0.0
    kind: np.dtype[Any] = np.dtype(np.uint8)
    floats: np.dtype[Any] = np.dtype(np.float32)
    is_dynamic: bool = False
    ends: tuple[float, float] | None = None

    def agrees(self, other: NumberGrid) -> bool:
        """Tell whether equal numbers stand for equal real values on both grids."""
        return (self.scale, self.zero) == (other.scale, other.zero)

    def value(self, number: float) -> float:
        """Return what `number` stands for."""
        return (number - self.zero) * self.scale

    @property
    def plain(self) -> NumberGrid:
        """The grid on which the numbers stand for themselves."""
        return replace(self, scale=1.0, zero=0.0)

    @property
    def codes(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        info = ml_dtypes.iinfo if "int" in self.kind.name else ml_dtypes.finfo
        return self.ends or (float(info(self.kind).min), float(info(self.kind).max))

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and largest real value."""
        low, high = self.codes
        return self.value(low), self.value(high)

    def covered(self, bounds: tuple[float, float]) -> tuple[float, float]:
        """Return the range of values within `bounds` that gives symmetric int8 the same steps if possible.

        Values of up to 127 steps to both sides of 0 get the range of 127 steps: int8 has the same grid.
        """
        low = max(bounds[0], self.limits[0]) / self.scale
        high = min(bounds[1], self.limits[1]) / self.scale
        if "int" in self.kind.name and low > -128.5 and high < 127.5:
            low, high = -127.0, 127.0
        return low * self.scale, high * self.scale


class GridOperand(NamedTuple):
    """Slots of a quantized operand: its numbers, their scale (None for 1) and zero point."""

    data: int
    scale: int | None
    zero: int | None


class Quantized(NamedTuple):
    """Quantized operands and output of an operator; None for an output in float."""

    operands: tuple[GridOperand, ...] = ()
    output: GridOperand | None = None


_TWO = (GridOperand(0, 1, 2), GridOperand(3, 4, 5))
_WHOLE = Quantized((GridOperand(0, None, 2), GridOperand(1, None, 3)), GridOperand(0, None, None))
_UNARY = Quantized((GridOperand(0, 1, 2),), GridOperand(0, 3, 4))

OPERATORS: dict[str, Quantized] = {
    "QuantizeLinear": Quantized((), GridOperand(0, 1, 2)),
    "DequantizeLinear": Quantized((GridOperand(0, 1, 2),)),
    "ConvInteger": _WHOLE,
    "MatMulInteger": _WHOLE,
    "MatMulIntegerToFloat": Quantized((GridOperand(0, 2, 4), GridOperand(1, 3, 5))),
    "QAttention": Quantized((GridOperand(0, 3, 6), GridOperand(1, 4, 7))),
    "QGemm": Quantized(_TWO, GridOperand(0, 7, 8)),
    "QLinearWhere": Quantized((GridOperand(1, 2, 3), GridOperand(4, 5, 6)), GridOperand(0, 7, 8)),
    **dict.fromkeys(
        ("QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"), Quantized(_TWO, GridOperand(0, 6, 7))
    ),
    **dict.fromkeys(
        """QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu QLinearSigmoid
        QLinearSoftmax""".split(),
        _UNARY,
    ),
    "GatherBlockQuantized": Quantized((GridOperand(0, 2, 3),)),
    "MatMulNBits": Quantized((GridOperand(1, 2, 3),)),
    "QMoE": Quantized((GridOperand(2, 3, 11), GridOperand(5, 6, 12))),
}
"""Op type -> its quantized operands and output; QLinearConcat has any number of operands."""


def quantized_slots(node: onnx.NodeProto) -> Quantized:
    """Return the quantized operands and output of `node`; none for an operator that is not in OPERATORS."""
    if node.op_type == "QLinearConcat":
        slots = range(2, len(node.input), 3)
        return Quantized(tuple(GridOperand(slot, slot + 1, slot + 2) for slot in slots), GridOperand(0, 0, 1))
    quantized = OPERATORS.get(node.op_type, Quantized())
    if node.op_type == "QGemm" and not input_name(node, 7):
        return quantized._replace(output=None)
    return quantized


COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
"""Operators whose result depends on the rounding of what they read."""

_EVERY = tuple(range(1 << 8))
# Op type -> the inputs and outputs whose numbers are on one grid.
_JOINS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    **dict.fromkeys(DATA_MOVEMENT, ((0,), (0,))),
    **dict.fromkeys(
        """Compress GatherElements GatherND NhwcMaxPool ReduceMax ReduceMin Relu Resize ReverseSequence
            TopK Trilu Upsample""".split(),
        ((0,), (0,)),
    ),
    "Split": ((0,), _EVERY),
    **dict.fromkeys(("Concat", "Max", "Min"), (_EVERY, (0,))),
    "Clip": ((0, 1, 2), (0,)),
    "Pad": ((0, 2), (0,)),
    "Where": ((1, 2), (0,)),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), ((0, 2), (0,))),
    **dict.fromkeys(COMPARISONS, ((0, 1), ())),
    **dict.fromkeys(("ArgMax", "ArgMin", *SIZES), ((0,), ())),
}


def joined_slots(node: onnx.NodeProto) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the inputs and outputs of `node` whose numbers are on one grid; none for other operators."""
    if node.domain not in STANDARD_DOMAINS and node.op_type != "NhwcMaxPool":
        return (), ()
    inputs, outputs = _JOINS.get(node.op_type, ((), ()))
    made = (slot for slot in outputs if slot < len(node.output) and node.output[slot])
    return tuple(slot for slot in inputs if input_name(node, slot)), tuple(made)


class _Family:
    """Tensors of one grid.

    Attributes:
        given: the grid of the operator that quantizes one of them.
        read: the grid of the first operator that dequantizes one of them.
    """

    def __init__(self, tensor: str) -> None:
        self.tensors = [tensor]
        self.given: NumberGrid | None = None
        self.read: NumberGrid | None = None


GridOf = Callable[[onnx.NodeProto, GridOperand], NumberGrid]


def find_grids(
    nodes: Iterable[onnx.NodeProto], constants: Collection[str], grid_of: GridOf, source: str
) -> dict[str, NumberGrid]:
    """Return the grid of each computed tensor of quantized numbers.

    Args:
        nodes: of the main graph, in its order.
        constants: tensors whose numbers are known; each reader has its own grid for them.
        grid_of: the grid that the scale and zero point of an operand or output give.
        source: name of the model in messages.

    Raises ModelError if an operator joins numbers of different grids.
    """
    families: dict[str, _Family] = {}

    def family(tensor: str) -> _Family:
        return families.setdefault(tensor, _Family(tensor))

    for node in nodes:
        slots = quantized_slots(node)
        for operand in slots.operands:
            name = input_name(node, operand.data)
            if name and name not in constants:
                members = family(name)
                members.read = members.read or grid_of(node, operand)
        if slots.output is not None:
            family(node.output[0]).given = grid_of(node, slots.output)
        elif node.op_type == "DynamicQuantizeLinear":
            family(node.output[0]).given = NumberGrid(is_dynamic=True)
        inputs, outputs = joined_slots(node)
        joined = [node.input[slot] for slot in inputs if node.input[slot] not in constants]
        if node.op_type == "Cast" and _is_same_type(node, families):
            joined, outputs = [node.input[0]], (0,)
        joined += [node.output[slot] for slot in outputs]
        for other in joined[1:]:
            _unite(families, family(joined[0]), family(other), node, source)
    grids: dict[str, NumberGrid] = {}
    for tensor, members in families.items():
        grid = members.given or members.read
        if grid is not None and tensor not in constants:
            grids[tensor] = grid
    return grids


def _is_same_type(node: onnx.NodeProto, families: dict[str, _Family]) -> bool:
    """Tell whether a Cast of quantized numbers keeps their type: torch.ao writes such ones."""
    given = families[node.input[0]].given if node.input[0] in families else None
    return given is not None and onnx.helper.np_dtype_to_tensor_dtype(given.kind) == attributes_of(node)["to"]


def _unite(
    families: dict[str, _Family], one: _Family, other: _Family, node: onnx.NodeProto, source: str
) -> None:
    if one is other:
        return
    if one.given is not None and other.given is not None and not one.given.agrees(other.given):
        raise ModelError(
            f"{source}: {node.op_type} {node.name!r} reads quantized numbers of different scales or zero "
            f"points, {one.tensors[0]!r} and {other.tensors[0]!r}; dequantize them in front of it"
        )
    one.given, one.read = one.given or other.given, one.read or other.read
    one.tensors += other.tensors
    families.update(dict.fromkeys(other.tensors, one))

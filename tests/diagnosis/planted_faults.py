"""Faults planted in quantized files, each with the causes that name it: the answer before any rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from later import later
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_UNARY = {"QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QLinearGlobalAveragePool"}
_OUTPUT_SCALE = {"QuantizeLinear": 1, "QLinearConcat": 0, "QGemm": 7} | dict.fromkeys(_UNARY, 3)
_OUTPUT_SCALE |= dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), 6)
RANGE = frozenset({"wide_range", "clipping", "lost_values", "foreign_parameters", "unequal_scales"})
"""Kinds of causes that say that the scale of a tensor does not fit its values."""


@dataclass
class Planted:
    """A quantized file with a fault.

    Attributes:
        proto: the file.
        shown: the float model beside it.
        answers: for each fault, the kinds of causes that name it, and the tensors and nodes of its place; no
            places for a fault of the whole file.
        target: of the diagnosis, if the fault is one for a target alone.
        has_repair: whether a repair can restore the accuracy.
    """

    proto: onnx.ModelProto
    shown: onnx.ModelProto
    answers: list[tuple[frozenset[str], frozenset[str]]] = field(default_factory=list)
    target: str | None = None
    has_repair: bool = True

    def answer(self, kinds: set[str] | frozenset[str], *places: str) -> None:
        """Note what names the fault."""
        self.answers.append((frozenset(kinds), frozenset(places)))

    def constant(self, name: str) -> onnx.TensorProto:
        """Return an initializer."""
        return next(t for t in self.proto.graph.initializer if t.name == name)

    def array(self, name: str) -> NDArray[np.generic]:
        """Return the values of an initializer."""
        return numpy_helper.to_array(self.constant(name))

    def store(self, name: str, values: NDArray[np.generic]) -> None:
        """Change the values of an initializer, or add one."""
        old = [t for t in self.proto.graph.initializer if t.name == name]
        kind = numpy_helper.to_array(old[0]).dtype if old else values.dtype
        tensor = numpy_helper.from_array(np.asarray(values, kind), name)
        if old:
            old[0].CopyFrom(tensor)
        else:
            self.proto.graph.initializer.append(tensor)

    def activations(self) -> list[tuple[str, str, str]]:
        """Return tensor, scale and zero point of each quantized activation, a pair once."""
        names = {t.name for t in self.proto.graph.initializer}
        rows: dict[str, tuple[str, str, str]] = {}
        for node in self.proto.graph.node:
            slot = _OUTPUT_SCALE.get(node.op_type)
            if slot is None or (node.op_type == "QuantizeLinear" and node.input[0] in names):
                continue
            tensor = node.input[0] if node.op_type == "QuantizeLinear" else node.output[0]
            if slot < len(node.input):
                rows.setdefault(node.input[slot], (tensor, node.input[slot], node.input[slot + 1]))
        return list(rows.values())

    def pick(self, at: int) -> tuple[str, str, str]:
        """Return one activation of the middle: 0 is the first behind the input, -1 before the output."""
        inner = self.activations()[1:]
        return inner[at % len(inner)]

    def weighted(self, at: int) -> tuple[onnx.NodeProto, str, str, str]:
        """Return a node with a quantized weight, the integers or floats behind it, scale and zero point."""
        names, rows = {t.name for t in self.proto.graph.initializer}, []
        makers = {node.output[0]: node for node in self.proto.graph.node}
        for node in self.proto.graph.node:
            if node.op_type in ("QLinearConv", "QLinearMatMul", "QGemm") and node.input[3] in names:
                rows.append((node, *node.input[3:6]))
            elif node.op_type in ("Conv", "MatMul", "Gemm") and node.input[1] in makers:
                pair = makers[node.input[1]]
                if pair.op_type != "DequantizeLinear":
                    continue
                stored = pair.input[0]
                stored = makers[stored].input[0] if stored in makers else stored
                if stored in names:
                    rows.append((node, stored, *pair.input[1:3]))
        return rows[at % len(rows)]

    def insert(self, node: onnx.NodeProto, behind: str) -> None:
        """Add a node behind the one that computes `behind`, and give the readers its output."""
        nodes = self.proto.graph.node
        at = next(i for i, one in enumerate(nodes) if behind in one.output)
        for other in nodes:
            other.input[:] = [node.output[0] if name == behind else name for name in other.input]
        node.input[0] = node.input[0] or behind
        nodes.insert(at + 1, node)


Fault = Callable[[Planted], None]


def _set_scale(planted: Planted, name: str, values: NDArray[np.generic]) -> None:
    """Change a scale, and the int32 biases of integer convolutions that it is a part of."""
    factor = float((planted.array(name).reshape(-1) / np.reshape(values, -1))[0])
    for node in planted.proto.graph.node:
        if node.op_type in ("QLinearConv", "QGemm") and node.input[1] == name:
            slot = 8 if node.op_type == "QLinearConv" else 6
            if slot < len(node.input) and node.input[slot]:
                bias = planted.array(node.input[slot])
                planted.store(node.input[slot], np.clip(np.rint(bias * factor), -(2**31), 2**31 - 1))
    planted.store(name, values)


@later
def wide(planted: Planted, at: int, factor: float) -> None:
    """Make the range of an activation `factor` times as wide."""
    tensor, scale, _ = planted.pick(at)
    _set_scale(planted, scale, planted.array(scale) * np.float32(factor))
    planted.answer(RANGE, tensor)


def narrow(at: int, factor: float) -> Fault:
    """Make the range of an activation narrower, so that values saturate."""
    return wide(at, 1 / factor)


@later
def one_sided(planted: Planted, at: int) -> None:
    """Move the zero point of an asymmetric activation: one end of the values saturates."""
    tensor, _, zero = planted.pick(at)
    low = 60 if int(planted.array(zero)) < 128 else -60
    planted.store(zero, planted.array(zero).astype(np.int64) + low)
    planted.answer(RANGE, tensor)


@later
def foreign(planted: Planted, at: int, other: int) -> None:
    """Give an activation the scale and the zero point of another one."""
    (tensor, scale, zero), (_, of_scale, of_zero) = planted.pick(at), planted.pick(other)
    _set_scale(planted, scale, planted.array(of_scale))
    planted.store(zero, planted.array(of_zero))
    planted.answer(RANGE | {"unsigned_on_signed"}, tensor)


@later
def unsigned(planted: Planted, at: int) -> None:
    """Give an activation with negative values a grid that begins at 0, with the same largest value."""
    signed = [row for row in planted.activations()[1:] if int(planted.array(row[2])) > 30]
    tensor, scale, zero = signed[at % len(signed)]
    step, offset = planted.array(scale), int(planted.array(zero))
    _set_scale(planted, scale, step * np.float32((255 - offset) / 255))
    planted.store(zero, np.zeros_like(planted.array(zero)))
    planted.answer({"unsigned_on_signed", "clipping"}, tensor)


@later
def input_range(planted: Planted, factor: float) -> None:
    """Make the range of the model's input alone that of data in another unit."""
    tensor, scale, _ = planted.activations()[0]
    _set_scale(planted, scale, planted.array(scale) * np.float32(factor))
    planted.answer({"preprocessing"} | RANGE, tensor)


@later
def lost_bias(planted: Planted, at: int) -> None:
    """Remove the bias of a layer."""
    node, *_ = planted.weighted(at)
    slot = {"QLinearConv": 8, "QGemm": 6}.get(node.op_type, 2)
    name = node.input[slot]
    del node.input[slot:]
    planted.answer({"lost_bias"}, node.name, name, *node.output)


@later
def saturated_bias(planted: Planted, at: int) -> None:
    """Make the scale of an int32 bias so small that the numbers saturate."""
    node, *_ = planted.weighted(at)
    pair = next(n for n in planted.proto.graph.node if node.input[2] in n.output)
    stored, scale = planted.array(pair.input[0]), planted.array(pair.input[1])
    tiny = np.float32(np.abs(stored * scale).max() / 4 / 2**31) * np.ones_like(scale)
    real = np.clip(np.rint(stored * scale / tiny), -(2**31), 2**31 - 1)
    planted.store(pair.input[0], real)
    planted.store(pair.input[1], tiny)
    planted.answer({"saturated_bias", "lost_bias"}, node.name, *pair.input, node.input[2])


@later
def wrong_axis(planted: Planted, at: int) -> None:
    """Apply the scales of a weight with as many inputs as outputs along its other axis."""
    node, stored, scale, _ = planted.weighted(at)
    shape = planted.array(stored).shape
    assert shape[0] == shape[1] and planted.array(scale).size == shape[0]
    for pair in planted.proto.graph.node:
        if pair.op_type == "DequantizeLinear" and pair.input[1] == scale:
            axis = next((a.i for a in pair.attribute if a.name == "axis"), 1)
            del pair.attribute[:]
            pair.attribute.append(helper.make_attribute("axis", 1 - axis))
    planted.answer({"wrong_axis"}, node.name, stored, node.input[1])


@later
def foreign_weight(planted: Planted, at: int, factor: float) -> None:
    """Give a weight the scale of another one, `factor` times its own."""
    node, stored, scale, _ = planted.weighted(at)
    planted.store(scale, planted.array(scale) * np.float32(factor))
    planted.answer(
        {"foreign_parameters", "weight_scale"}, node.name, stored, *node.input[1:2], *node.input[3:4]
    )


@later
def double(planted: Planted, at: int, factor: float = 1.37) -> None:
    """Quantize a tensor again behind its pair, on another grid."""
    tensor, scale, zero = planted.pick(at)
    nodes = planted.proto.graph.node
    first = next(n for n in nodes if n.op_type == "QuantizeLinear" and n.input[1] == scale)
    behind = next(
        n.output[0] for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] == first.output[0]
    )
    planted.store("again_scale", planted.array(scale) * np.float32(factor))
    first = helper.make_node("QuantizeLinear", ["", "again_scale", zero], ["again_q"], "again_q")
    planted.insert(first, behind)
    second = helper.make_node("DequantizeLinear", ["again_q", "again_scale", zero], ["again_dq"], "again_dq")
    at_first = list(nodes).index(first)
    for node in nodes:
        if node.name != "again_q":
            node.input[:] = ["again_dq" if name == "again_q" else name for name in node.input]
    nodes.insert(at_first + 1, second)
    planted.answer({"double_quantization"}, tensor, behind, "again_q", "again_dq")


@later
def inside_fusion(planted: Planted, op: str) -> None:
    """Put a signed pair between the first Conv and the operator behind it."""
    nodes = planted.proto.graph.node
    makers = {name: node for node in nodes for name in node.output}
    relu = next(n for n in nodes if n.op_type == op and makers[n.input[0]].op_type == "Conv")
    tensor = relu.input[0]
    reach = np.float32(6 / 127)
    planted.store("inside_scale", np.asarray(reach))
    planted.store("inside_zero", np.asarray(0, np.int8))
    names = ["inside_scale", "inside_zero"]
    at = list(nodes).index(relu)
    nodes.insert(at, helper.make_node("QuantizeLinear", [tensor, *names], ["inside_q"], "inside_q"))
    nodes.insert(
        at + 1, helper.make_node("DequantizeLinear", ["inside_q", *names], ["inside_dq"], "inside_dq")
    )
    relu.input[0] = "inside_dq"
    planted.answer({"pair_inside_fusion"}, tensor, relu.name, makers[tensor].name, "inside_q", "inside_dq")


def missing_pair(planted: Planted) -> None:
    """Make the first sum with a pair in front read the float tensor instead."""
    makers = {name: node for node in planted.proto.graph.node for name in node.output}
    node = next(
        n
        for n in planted.proto.graph.node
        if n.op_type == "Add"
        and all(i in makers for i in n.input)
        and any(makers[i].op_type == "DequantizeLinear" for i in n.input)
    )
    slot = max(s for s in (0, 1) if makers[node.input[s]].op_type == "DequantizeLinear")
    before = node.input[slot]
    tensor = makers[makers[before].input[0]].input[0]
    node.input[slot] = tensor
    planted.answer({"missing_pair"}, tensor, before, node.name)


@later
def left_in_float(planted: Planted, at: int) -> None:
    """Make a layer of the middle read float tensors."""
    node, stored, scale, zero = planted.weighted(at)
    makers = {name: n for n in planted.proto.graph.node for name in n.output}
    pair = makers[node.input[0]]
    tensor = makers[pair.input[0]].input[0]
    node.input[0] = tensor
    values, step = planted.array(stored).astype(np.float32), planted.array(scale)
    if planted.constant(stored).data_type != onnx.TensorProto.FLOAT:
        axis = 0 if node.op_type == "Conv" else 1
        shape = [-1 if i == axis else 1 for i in range(values.ndim)] if step.size > 1 else []
        values = values * (step.reshape(shape) if shape else step)
    planted.store("float_weight", values.astype(np.float32))
    node.input[1] = "float_weight"
    planted.answer({"left_in_float", "missing_pair"}, node.name, tensor, "float_weight", *node.output)


def half_overflow(planted: Planted) -> None:
    """Compute one Relu or Transpose in float16, in a unit that leaves its numbers."""
    node = next(n for n in planted.proto.graph.node if n.op_type in ("Relu", "Transpose"))
    before, after = node.input[0], node.output[0]
    nodes = planted.proto.graph.node
    at = list(nodes).index(node)
    planted.store("unit", np.asarray(60000, np.float32))
    node.input[0], node.output[0] = "half_in", "half_out"
    nodes.insert(at, helper.make_node("Mul", [before, "unit"], ["large"], "large"))
    nodes.insert(
        at + 1, helper.make_node("Cast", ["large"], ["half_in"], "half_in", to=onnx.TensorProto.FLOAT16)
    )
    nodes.insert(at + 3, helper.make_node("Cast", ["half_out"], ["wide"], "wide", to=onnx.TensorProto.FLOAT))
    nodes.insert(at + 4, helper.make_node("Div", ["wide", "unit"], [after], "small"))
    planted.answer({"float16_overflow"}, "half_in", "half_out", "large", node.name)


@later
def stale_weights(planted: Planted, norm: str, slot: int = 1) -> None:
    """Divide the channels of a normalisation by factors that the weights behind it were not given."""
    node = next(n for n in planted.proto.graph.node if n.name == norm)
    factors = np.linspace(1, 6, 16).astype(np.float32)
    makers = {name: n for n in planted.proto.graph.node for name in n.output}
    name = node.input[slot]
    if name in makers:
        pair = makers[name]
        real = planted.array(pair.input[0]).astype(np.float32) - planted.array(pair.input[2])
        planted.store("new_gain", (real * planted.array(pair.input[1]) / factors).astype(np.float32))
    else:
        planted.store("new_gain", planted.array(name) / factors)
    node.input[slot] = "new_gain"
    readers, behind = [], {*node.output}
    for other in planted.proto.graph.node:
        if behind & {*other.input}:
            readers.append(other.name)
            behind |= {*other.output} if other.op_type.endswith("Linear") else set()
    planted.answer({"stale_weights"}, node.name, *node.output, *readers, "new_gain")


@later
def for_target(planted: Planted, target: str, kind: str) -> None:
    """Ask for a target that does not take the file."""
    planted.target, planted.has_repair = target, False
    planted.answer({kind, "unsupported_by_target"})

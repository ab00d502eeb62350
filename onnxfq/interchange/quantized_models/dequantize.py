"""A quantized model as the float model that it approximates, with all that it says of ranges and grids.

A tensor of quantized numbers is read as the real numbers that they stand for: QuantizeLinear and
DequantizeLinear become nothing, an integer operator its float one, and what only moves numbers stays as it
is. Where a range begins at 0 the pair is what is left of a Relu or Clip that was removed in front of it
(onnxruntime's quantizer does so), and a Clip to the range takes its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError, nearest
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import all_nodes, default_opset
from onnxfq.graph.names import unused
from onnxfq.graph.ops import MOVES, QUANTIZED_OPS, SPLITS, STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.interchange.quantized_models.stored_weights import Grid, grid_of

# Their outputs are never negative, or are so when their first input is not.
_POSITIVE = frozenset({"Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Sqrt"})
_AS_BEFORE = MOVES | {"AveragePool", "GlobalAveragePool", "MaxPool", "Slice"}
# The data movement through which onnxruntime's quantizer passes quantized numbers: it keeps their range.
_MOVES = MOVES | SPLITS | {"MaxPool"}


@dataclass
class FloatForm:
    """The float model, and what the source says.

    ranges: real numbers that a quantized tensor covers. grids: of constants. inputs: by weighted node, which
    of its multiplied inputs are quantized. changes: what was done, counted.
    """

    proto: onnx.ModelProto
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict)
    inputs: dict[str, set[int]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)


Handler = Callable[["Unfolding", onnx.NodeProto], None]


class Unfolding:
    """Builds the float form of one model, node by node; the handlers say what a node becomes."""

    def __init__(self, proto: onnx.ModelProto, source: str, handlers: dict[str, Handler]) -> None:
        """Take a normalised model; handlers: by op type, for operators of quantized numbers."""
        self.source, self.handlers, self.opset = source, handlers, default_opset(proto)
        self.form = FloatForm(onnx.ModelProto())
        self.form.proto.CopyFrom(proto)
        self.graph = self.form.proto.graph
        self.index = GraphIndex(self.graph)
        self.arrays, self.outputs = dict(self.index.constants), self.index.outputs
        self.inputs = {value.name for value in self.graph.input}
        self.nodes: list[onnx.NodeProto] = []
        self.makers: dict[str, onnx.NodeProto] = {}
        # Of each tensor of the source the float tensor that it stands for, if it is another.
        self.real: dict[str, str] = {}
        self.quantized: set[str] = set()

    def run(self) -> FloatForm:
        """Return the float form. Raises ModelError for an operator that has none."""
        nodes = list(self.graph.node)
        for node in nodes:
            self._keep_captured(node)
            handler = self.handlers.get(node.op_type)
            if handler is not None:
                handler(self, node)
            elif node.op_type in QUANTIZED_OPS or node.op_type.startswith("QLinear"):
                raise ModelError(
                    f"{self.source}: {node.op_type} {node.name!r} has no float form that is known"
                    f"{nearest(node.op_type, self.handlers)}; export the model without it"
                )
            else:
                self.keep(node)
        self._finish()
        return self.form

    def keep(self, node: onnx.NodeProto) -> None:
        """Keep a float node, reading real numbers."""
        if node.op_type in WEIGHTED_INPUTS and node.domain in STANDARD_DOMAINS:
            slots = WEIGHTED_INPUTS[node.op_type]
            self.form.inputs[node.name] = {slot for slot in slots if node.input[slot] in self.quantized}
        if node.op_type in _MOVES and node.input[0] in self.quantized:
            self.quantized |= set(node.output)
            covered = self.form.ranges.get(self.name(node.input[0]))
            if covered is not None:
                self.form.ranges |= dict.fromkeys(node.output, covered)
        if node.op_type in ("Div", "Mul"):
            self._scale(node)
        self.emit(node.op_type, [self.name(i) for i in node.input], list(node.output), node)

    def _scale(self, node: onnx.NodeProto) -> None:
        """Note that one number times a quantized tensor is as good as quantized: the scale takes it up."""
        slot = next((s for s in (0, 1) if node.input[s] in self.quantized), None)
        factor = None if slot is None else self.array(self.name(node.input[1 - slot]))
        if factor is None or factor.size != 1 or (slot == 1 and node.op_type == "Div") or not factor.all():
            return
        self.quantized |= set(node.output)
        covered = self.form.ranges.get(self.name(node.input[slot or 0]))
        if covered is not None:
            number = float(factor.item())
            ends = [end * number if node.op_type == "Mul" else end / number for end in covered]
            self.form.ranges[node.output[0]] = (min(ends), max(ends))

    def emit(
        self, op: str, inputs: list[str], outputs: list[str], like: onnx.NodeProto, **attributes: Any
    ) -> None:
        """Add a node with the attributes of `like` if it is of the same op type, and those given."""
        made = helper.make_node(op, inputs, outputs, name=like.name, **attributes)
        if op == like.op_type:
            made.CopyFrom(like)
            del made.input[:], made.output[:]
            made.input.extend(inputs)
            made.output.extend(outputs)
        self.nodes.append(made)
        self.makers |= dict.fromkeys(outputs, made)

    def name(self, tensor: str) -> str:
        """Return the float tensor that `tensor` of the source stands for."""
        return self.real.get(tensor, tensor)

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant; None for what is computed, or absent."""
        tensor = self.arrays.get(name)
        return None if tensor is None else tensor_array(tensor)

    def constant(self, name: str, values: ArrayLike) -> str:
        """Add a float constant and return its name, `name` if that is free."""
        free = name if name not in self.arrays else unused(name, self.arrays.keys() | self.index.names)
        tensor = numpy_helper.from_array(np.asarray(values, np.float32), free)
        self.arrays[free] = tensor
        self.graph.initializer.append(tensor)
        return free

    def weight(self, name: str, grid: Grid) -> str:
        """Add the constant that `grid` stands for, remember the grid, and return its name."""
        made = self.constant(name, grid.values)
        self.form.grids[made] = grid.positive()
        return made

    def parameters(self, node: onnx.NodeProto, scale: int, zero_point: int) -> tuple[NDArray[Any], Any]:
        """Return scale and zero point, None for none, at two inputs. Raises ModelError if computed."""
        factor = self.parameter(node, scale)
        assert factor is not None, "a scale is no optional input"
        return factor, self.parameter(node, zero_point)

    def parameter(self, node: onnx.NodeProto, slot: int) -> NDArray[Any] | None:
        """Return the constant at input `slot`, None where there is none. Raises ModelError if computed."""
        name = node.input[slot] if slot < len(node.input) else ""
        value = self.array(self.name(name)) if name else None
        if name and value is None:
            raise ModelError(
                f"{self.source}: {node.op_type} {node.name!r} computes its parameter {name!r}; only "
                "constant ones can be converted"
            )
        return value

    def real_input(self, node: onnx.NodeProto, slot: int, scale: int, zero_point: int, role: str) -> str:
        """Return the float tensor of quantized input `slot`, whose parameters are at the two other slots.

        role: what a constant there is, for the name of the new one.
        """
        name = node.input[slot]
        factor, offset = self.parameters(node, scale, zero_point)
        stored = self.array(name)
        if stored is not None:
            axis = 0 if node.op_type == "QLinearConv" else stored.ndim - 1
            return self.weight(f"{name}/{role}", grid_of(stored, factor, offset, axis))
        if name in self.inputs:
            return self.dequantized_input(name, factor, offset)
        return self.computed(name, factor, offset)

    def computed(self, name: str, scale: NDArray[Any], zero_point: Any) -> str:
        """Return the float tensor of a computed one of quantized numbers.

        A constant may stand behind it that only moves: what its numbers mean is known here first.
        """
        real = self.name(name)
        self.note_range(real, scale, zero_point, None)
        maker = self.makers.get(real)
        while maker is not None and maker.op_type in _MOVES:
            stored = self.array(maker.input[0])
            if stored is not None and stored.dtype.kind in "iu" and stored.dtype.itemsize == 1:
                maker.input[0] = self.weight(f"{maker.input[0]}/weight", grid_of(stored, scale, zero_point))
            maker = self.makers.get(maker.input[0])
        return real

    def dequantized_input(self, name: str, scale: NDArray[Any], zero_point: Any) -> str:
        """Compute the real numbers of a model input that is quantized, and return their name."""
        if f"{name}/real" not in self.makers:
            zero = self.constant(f"{name}/zero", np.float32(0 if zero_point is None else zero_point))
            factor = self.constant(f"{name}/factor", scale)
            cast, shifted = f"{name}/cast", f"{name}/shifted"
            self.emit("Cast", [name], [cast], _named(cast), to=int(onnx.TensorProto.FLOAT))
            self.emit("Sub", [cast, zero], [shifted], _named(shifted))
            self.emit("Mul", [shifted, factor], [f"{name}/real"], _named(f"{name}/real"))
            self.note_range(f"{name}/real", scale, zero_point, None)
        return f"{name}/real"

    def give(self, node: onnx.NodeProto, tensor: str, scale: int, zero_point: int) -> None:
        """Say that output 0 of `node`, of quantized numbers, stands for `tensor`, cut to the range."""
        factor, offset = self.parameters(node, scale, zero_point)
        self.real[node.output[0]] = self.saturated(tensor, node, factor, offset)

    def saturated(self, tensor: str, node: onnx.NodeProto, scale: NDArray[Any], zero_point: Any) -> str:
        """Return `tensor`, or its Clip to the range where that begins at 0 and the values may not."""
        low, high = self.note_range(tensor, scale, zero_point, node)
        if low != 0 or tensor in self.inputs or self._positive(tensor):
            return tensor
        clipped = f"{tensor}/clipped"
        if clipped not in self.makers:
            if self.opset < 11:
                self.emit("Clip", [tensor], [clipped], _named(clipped), min=0.0, max=float(high))
            else:
                ends = (("min", 0.0), ("max", high))
                limits = [self.constant(f"{clipped}/{key}", np.float32(end)) for key, end in ends]
                self.emit("Clip", [tensor, *limits], [clipped], _named(clipped))
            self.form.changes["Clip put where the range of a pair begins at 0"] += 1
        self.form.ranges[clipped] = (low, high)
        return clipped

    def note_range(
        self, tensor: str, scale: NDArray[Any], zero_point: Any, node: onnx.NodeProto | None
    ) -> tuple[float, float]:
        """Remember what a quantized tensor covers and return it; node: that writes it, if one does."""
        if np.size(scale) != 1:
            raise ModelError(
                f"{self.source}: activation {tensor!r} has {np.size(scale)} scales; only one for a tensor "
                "can be converted"
            )
        kind = stored_type(node, zero_point)
        zero = 0.0 if zero_point is None else float(np.asarray(zero_point).reshape(-1)[0])
        low, high = limits_of(kind)
        if zero == 0 and low < 0:  # symmetric already: the same scale, without -128
            low = -high
        factor = float(np.asarray(scale).reshape(-1)[0])
        found = ((low - zero) * factor, (high - zero) * factor)
        if zero:
            self.form.changes[f"activation with {kind.name} zero point made symmetric"] += 1
        elif kind.name != "int8" and node is not None:
            self.form.changes[f"activation of {kind.name} made symmetric"] += 1
        return self.form.ranges.setdefault(tensor, found)

    def _keep_captured(self, node: onnx.NodeProto) -> None:
        """Give what bodies of `node` read its own name again."""
        if not _has_body(node):
            return
        alone = onnx.GraphProto(node=[node])
        for inner in all_nodes(alone):
            if inner.op_type in QUANTIZED_OPS:
                raise ModelError(
                    f"{self.source}: {inner.op_type} {inner.name!r} is inside a body of {node.op_type} "
                    f"{node.name!r}; only the main graph can be converted"
                )
        for name in sorted(GraphIndex(alone).captured & set(self.real)):
            self.emit("Identity", [self.real.pop(name)], [name], _named(f"{name}/identity"))

    def _positive(self, tensor: str) -> bool:
        while tensor in self.makers:
            node = self.makers[tensor]
            if node.op_type in _POSITIVE:
                return True
            if node.op_type == "Clip":
                low = self.array(node.input[1]) if len(node.input) > 1 else None
                return bool(low is not None and low >= 0)
            if node.op_type not in _AS_BEFORE:
                return False
            tensor = node.input[0]
        return False

    def _finish(self) -> None:
        for output in self.outputs & set(self.real):
            self.emit("Identity", [self.real[output]], [output], _named(f"{output}/identity"))
        for value in self.graph.output:
            kind = value.type.tensor_type.elem_type
            if value.name in self._quantized_outputs():
                raise ModelError(
                    f"{self.source}: output {value.name!r} is quantized (type {kind}); export it in float"
                )
        read = {name for node in self.nodes for name in node.input} | self.outputs
        read |= self.index.captured
        kept = [tensor for tensor in self.graph.initializer if tensor.name in read]
        for name, values in (("node", self.nodes), ("initializer", kept)):
            copies = [type(one).FromString(one.SerializeToString()) for one in values]
            self.graph.ClearField(name)
            getattr(self.graph, name).extend(copies)
        # Tensors of quantized numbers are float now.
        del self.graph.value_info[:]

    def _quantized_outputs(self) -> set[str]:
        small = {
            helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in ("int8", "uint8", "int16", "uint16")
        }
        return {
            value.name
            for value in self.graph.output
            if value.name in self.real and value.type.tensor_type.elem_type in small
        }


def stored_type(node: onnx.NodeProto | None, zero_point: NDArray[Any] | None) -> np.dtype[Any]:
    """Return the type of the numbers that a QuantizeLinear writes: of its zero point, or by its attribute."""
    if zero_point is not None:
        return zero_point.dtype
    kind: np.dtype[Any] = np.dtype(np.uint8)
    for attribute in node.attribute if node is not None else ():
        if attribute.name == "output_dtype" and attribute.i:
            kind = np.dtype(helper.tensor_dtype_to_np_dtype(attribute.i))
    return kind


def limits_of(kind: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and largest number of a type, integer or float8."""
    info = ml_dtypes.iinfo if "int" in kind.name else ml_dtypes.finfo
    return float(info(kind).min), float(info(kind).max)


def _named(name: str) -> onnx.NodeProto:
    """Return a node to take the name of."""
    return helper.make_node("Identity", [], [], name=name)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.type in (5, 10) for attribute in node.attribute)

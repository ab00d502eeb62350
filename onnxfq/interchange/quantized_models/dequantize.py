"""Dequantization of a quantized model to float, with its ranges and grids.

A tensor of quantized numbers is read as their real values. QuantizeLinear and DequantizeLinear disappear, an
integer operator becomes its float one, and operators that only move numbers stay. A range that begins at 0 is
the remainder of a Relu or Clip that was removed (onnxruntime's quantizer does so); a Clip to the range
replaces it.
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
from onnxfq.graph.model import default_opset, list_nodes
from onnxfq.graph.names import pick_name
from onnxfq.graph.ops import MOVES, QUANTIZED_OPS, SPLITS, STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.graph.stored_grid import StoredGrid, grid_of

# Operators whose outputs are never negative, and operators that keep the sign of their first input.
_POSITIVE = frozenset({"Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Sqrt"})
_AS_BEFORE = MOVES | {"AveragePool", "GlobalAveragePool", "MaxPool", "Slice"}
# The data movement through which onnxruntime's quantizer passes quantized numbers: it keeps their range.
_MOVES = MOVES | SPLITS | {"MaxPool"}


@dataclass
class FloatForm:
    """The float model, and the quantization of its source.

    Attributes:
        proto: the float model.
        ranges: real numbers that a quantized tensor covers.
        grids: of constants.
        inputs: by weighted node, its quantized operands.
        changes: edits, counted.
    """

    proto: onnx.ModelProto
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    grids: dict[str, StoredGrid] = field(default_factory=dict)
    inputs: dict[str, set[int]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)


Handler = Callable[["Unfolding", onnx.NodeProto], None]


class Unfolding:
    """Builder of the float form of one model, node by node; handlers convert quantized operators."""

    def __init__(self, proto: onnx.ModelProto, source: str, handlers: dict[str, Handler]) -> None:
        """Take a normalised model.

        Args:
            proto: the model.
            source: its name in messages.
            handlers: by op type, for operators of quantized numbers.
        """
        self.source, self.handlers, self.opset = source, handlers, default_opset(proto)
        self.form = FloatForm(onnx.ModelProto())
        self.form.proto.CopyFrom(proto)
        self.graph = self.form.proto.graph
        self.index = GraphIndex(self.graph)
        self.arrays, self.outputs = dict(self.index.constants), self.index.outputs
        self.inputs = {value.name for value in self.graph.input}
        self.nodes: list[onnx.NodeProto] = []
        self.makers: dict[str, onnx.NodeProto] = {}
        # Tensor of the source -> its float tensor, if it differs.
        self.real: dict[str, str] = {}
        self.quantized: set[str] = set()

    def run(self) -> FloatForm:
        """Return the float form. Raises ModelError for an operator without a float form."""
        nodes = list(self.graph.node)
        for node in nodes:
            self._keep_captured(node)
            handler = self.handlers.get(node.op_type)
            if handler is not None:
                handler(self, node)
            elif node.op_type in QUANTIZED_OPS or node.op_type.startswith("QLinear"):
                raise ModelError(
                    f"{self.source}: {node.op_type} {node.name!r} has no known float form"
                    f"{nearest(node.op_type, self.handlers)}; export the model without it"
                )
            else:
                self.keep(node)
        self._finish()
        return self.form

    def keep(self, node: onnx.NodeProto) -> None:
        """Keep a float node; its inputs become real numbers."""
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
        """Mark a quantized tensor times one number as quantized too: the scale absorbs the number."""
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
        """Add a node with `attributes`, and the attributes of `like` if both have the same op type."""
        made = helper.make_node(op, inputs, outputs, name=like.name, **attributes)
        if op == like.op_type:
            made.CopyFrom(like)
            del made.input[:], made.output[:]
            made.input.extend(inputs)
            made.output.extend(outputs)
        self.nodes.append(made)
        self.makers |= dict.fromkeys(outputs, made)

    def name(self, tensor: str) -> str:
        """Return the float tensor that replaces `tensor` of the source."""
        return self.real.get(tensor, tensor)

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant; None for a computed or absent tensor."""
        tensor = self.arrays.get(name)
        return None if tensor is None else tensor_array(tensor)

    def constant(self, name: str, values: ArrayLike) -> str:
        """Add a float constant and return its name, `name` if it is free."""
        free = name if name not in self.arrays else pick_name(name, self.arrays.keys() | self.index.names)
        tensor = numpy_helper.from_array(np.asarray(values, np.float32), free)
        self.arrays[free] = tensor
        self.graph.initializer.append(tensor)
        return free

    def weight(self, name: str, grid: StoredGrid) -> str:
        """Add the constant of `grid`, remember the grid, and return the name."""
        made = self.constant(name, grid.values)
        self.form.grids[made] = grid.positive()
        return made

    def parameters(self, node: onnx.NodeProto, scale: int, zero_point: int) -> tuple[NDArray[Any], Any]:
        """Return the scale and zero point, None if absent, at two inputs. Raises ModelError if computed."""
        factor = self.parameter(node, scale)
        assert factor is not None, "a scale is no optional input"
        return factor, self.parameter(node, zero_point)

    def parameter(self, node: onnx.NodeProto, slot: int) -> NDArray[Any] | None:
        """Return the constant at input `slot`, None if absent. Raises ModelError if computed."""
        name = node.input[slot] if slot < len(node.input) else ""
        value = self.array(self.name(name)) if name else None
        if name and value is None:
            raise ModelError(
                f"{self.source}: {node.op_type} {node.name!r} computes its parameter {name!r}; only "
                "constant ones can be converted"
            )
        return value

    def real_input(self, node: onnx.NodeProto, slot: int, scale: int, zero_point: int, role: str) -> str:
        """Return the float tensor of quantized input `slot`.

        Args:
            node: an operator of quantized numbers.
            slot: the quantized input.
            scale: the input that holds its scale.
            zero_point: the input that holds its zero point.
            role: role of a constant at `slot`, used in the new name.
        """
        name = node.input[slot]
        factor, offset = self.parameters(node, scale, zero_point)
        stored = self.array(name)
        if stored is not None:
            axis = 0 if node.op_type == "QLinearConv" else stored.ndim - 1
            return self.weight(f"{name}/{role}", grid_of(stored, factor, offset, axis))
        if name in self.inputs:
            return self.dequantize_input(name, factor, offset)
        return self.unfold_computed(name, factor, offset)

    def unfold_computed(self, name: str, scale: NDArray[Any], zero_point: Any) -> str:
        """Return the float tensor of a computed tensor of quantized numbers.

        It may be a constant behind data movement, whose scale is first known here.
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

    def dequantize_input(self, name: str, scale: NDArray[Any], zero_point: Any) -> str:
        """Compute the real numbers of a quantized model input, and return their name."""
        if f"{name}/real" not in self.makers:
            zero = self.constant(f"{name}/zero", np.float32(0 if zero_point is None else zero_point))
            factor = self.constant(f"{name}/factor", scale)
            cast, shifted = f"{name}/cast", f"{name}/shifted"
            self.emit("Cast", [name], [cast], _make_name_node(cast), to=int(onnx.TensorProto.FLOAT))
            self.emit("Sub", [cast, zero], [shifted], _make_name_node(shifted))
            self.emit("Mul", [shifted, factor], [f"{name}/real"], _make_name_node(f"{name}/real"))
            self.note_range(f"{name}/real", scale, zero_point, None)
        return f"{name}/real"

    def give(self, node: onnx.NodeProto, tensor: str, scale: int, zero_point: int) -> None:
        """Map output 0 of `node`, of quantized numbers, to `tensor`, clipped to the range."""
        factor, offset = self.parameters(node, scale, zero_point)
        self.real[node.output[0]] = self.saturate(tensor, node, factor, offset)

    def saturate(self, tensor: str, node: onnx.NodeProto, scale: NDArray[Any], zero_point: Any) -> str:
        """Return `tensor`, or its Clip to a range that begins at 0 if the values may be negative."""
        low, high = self.note_range(tensor, scale, zero_point, node)
        if low != 0 or tensor in self.inputs or self._positive(tensor):
            return tensor
        clipped = f"{tensor}/clipped"
        if clipped not in self.makers:
            if self.opset < 11:
                self.emit("Clip", [tensor], [clipped], _make_name_node(clipped), min=0.0, max=float(high))
            else:
                ends = (("min", 0.0), ("max", high))
                limits = [self.constant(f"{clipped}/{key}", np.float32(end)) for key, end in ends]
                self.emit("Clip", [tensor, *limits], [clipped], _make_name_node(clipped))
            self.form.changes["Clip put where the range of a pair begins at 0"] += 1
        self.form.ranges[clipped] = (low, high)
        return clipped

    def note_range(
        self, tensor: str, scale: NDArray[Any], zero_point: Any, node: onnx.NodeProto | None
    ) -> tuple[float, float]:
        """Remember the range of a quantized tensor and return it.

        Args:
            tensor: its float form.
            scale: one number.
            zero_point: None if there is none.
            node: the node that quantizes it, None if there is none.
        """
        if np.size(scale) != 1:
            raise ModelError(
                f"{self.source}: activation {tensor!r} has {np.size(scale)} scales; only one for a tensor "
                "can be converted"
            )
        kind = find_stored_type(node, zero_point)
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
        """Restore the original names of tensors that bodies of `node` read."""
        if not _has_body(node):
            return
        alone = onnx.GraphProto(node=[node])
        for inner in list_nodes(alone):
            if inner.op_type in QUANTIZED_OPS:
                raise ModelError(
                    f"{self.source}: {inner.op_type} {inner.name!r} is inside a body of {node.op_type} "
                    f"{node.name!r}; only the main graph can be converted"
                )
        for name in sorted(GraphIndex(alone).captured & set(self.real)):
            self.emit("Identity", [self.real.pop(name)], [name], _make_name_node(f"{name}/identity"))

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
            self.emit("Identity", [self.real[output]], [output], _make_name_node(f"{output}/identity"))
        for value in self.graph.output:
            kind = value.type.tensor_type.elem_type
            if value.name in self._find_quantized_outputs():
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
        # Tensors of quantized numbers have become float.
        del self.graph.value_info[:]

    def _find_quantized_outputs(self) -> set[str]:
        small = {
            helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in ("int8", "uint8", "int16", "uint16")
        }
        return {
            value.name
            for value in self.graph.output
            if value.name in self.real and value.type.tensor_type.elem_type in small
        }


def find_stored_type(node: onnx.NodeProto | None, zero_point: NDArray[Any] | None) -> np.dtype[Any]:
    """Return the type of the numbers of a QuantizeLinear: of its zero point, or from its attribute."""
    if zero_point is not None:
        return zero_point.dtype
    kind: np.dtype[Any] = np.dtype(np.uint8)
    for attribute in node.attribute if node is not None else ():
        if attribute.name == "output_dtype" and attribute.i:
            kind = np.dtype(helper.tensor_dtype_to_np_dtype(attribute.i))
    return kind


def limits_of(kind: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and largest number of an integer or float8 type."""
    info = ml_dtypes.iinfo if "int" in kind.name else ml_dtypes.finfo
    return float(info(kind).min), float(info(kind).max)


def _make_name_node(name: str) -> onnx.NodeProto:
    """Return a node that only carries a name."""
    return helper.make_node("Identity", [], [], name=name)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.type in (5, 10) for attribute in node.attribute)

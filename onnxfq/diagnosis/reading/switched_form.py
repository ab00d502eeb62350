"""`switch_form`: the float form of a quantized file, with a switch in place of each quantizer.

Switches, scales, zero points and constants are inputs with defaults, so one session runs the file as it is,
without some of its quantizers, or with a repair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.bounds import UNKNOWN
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.stored_grid import StoredGrid
from onnxfq.interchange.quantized_models.dequantize import Unfolding
from onnxfq.interchange.quantized_models.number_grids import (
    NumberGrid,
    attributes_of,
    input_name,
    quantized_slots,
)
from onnxfq.interchange.quantized_models.operators import HANDLERS

_PREFIX = "diagnosed"

_BIASES = {"Conv": (2, 1), "Gemm": (2, 1), "QGemm": (6, 3), "QLinearConv": (8, 3)}
# Op type -> the slots of its bias and of its weight.


@dataclass(frozen=True)
class ActivationQuantizer:
    """One quantizer of a computed tensor.

    Attributes:
        number: its place in the order of computation.
        tensor: by its name in the file: what a QuantizeLinear reads, or what an integer operator computes.
        node: that quantizes.
        op_type: of that node.
        scale: name of the scale in the file.
        zero_point: name of the zero point in the file; empty without one.
        grid: scale, zero point and type.
        real: the tensor in front of it in the float form, limited where the range does the work of a Relu.
        plain: the same without that limit.
        is_symmetric: whether its range is the same on both sides of 0, as most of its type are.
    """

    number: int
    tensor: str
    node: str
    op_type: str
    scale: str
    zero_point: str
    grid: NumberGrid
    real: str
    plain: str
    is_symmetric: bool = False

    @property
    def switch(self) -> str:
        """Input of the form that switches it on."""
        return f"{_PREFIX}/{self.number}/on"

    @property
    def scale_input(self) -> str:
        """Input of the form for its scale."""
        return f"{_PREFIX}/{self.number}/scale"

    @property
    def zero_input(self) -> str:
        """Input of the form for its zero point."""
        return f"{_PREFIX}/{self.number}/zero_point"

    @property
    def limit_input(self) -> str:
        """Input of the form for the two ends of the limit."""
        return f"{_PREFIX}/{self.number}/limit"

    @property
    def codes(self) -> tuple[float, float]:
        """The smallest and the largest number of its type."""
        info = ml_dtypes.iinfo if "int" in self.grid.kind.name else ml_dtypes.finfo
        return float(info(self.grid.kind).min), float(info(self.grid.kind).max)

    @property
    def is_centered(self) -> bool:
        """Whether 0 is in the middle of its numbers."""
        low, high = self.codes
        return abs(self.grid.zero - (low + high) / 2) <= 0.5

    @property
    def starts_at_zero(self) -> bool:
        """Whether it has no number below 0."""
        return self.grid.zero == self.codes[0]


@dataclass(frozen=True)
class StoredConstant:
    """One constant that the file stores in integers.

    Attributes:
        constant: its name in the float form.
        node: that dequantizes it in the file.
        op_type: of that node.
        data: name of the integers, or of the floats that a QuantizeLinear rounds.
        scale: name of the scale.
        zero_point: name of the zero point; empty without one.
        grid: its numbers.
        kind: name of its integer type.
        floats: values in front of its QuantizeLinear; None if only integers are stored.
    """

    constant: str
    node: str
    op_type: str
    data: str
    scale: str
    zero_point: str
    grid: StoredGrid
    kind: str
    floats: NDArray[np.float32] | None

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias of 32 bits."""
        return self.kind == "int32"


@dataclass
class SwitchedForm:
    """The float form with its switches.

    Attributes:
        proto: the form; every quantizer is on by default.
        activations: in the order of computation.
        constants: in the order of the file.
        shifted: nodes whose numbers are read on another grid than they were given.
    """

    proto: onnx.ModelProto
    activations: list[ActivationQuantizer] = field(default_factory=list)
    constants: list[StoredConstant] = field(default_factory=list)
    shifted: list[tuple[str, str]] = field(default_factory=list)


class _SwitchedUnfolding(Unfolding):
    """Builder of the form: where `Unfolding` leaves a Clip, it leaves a quantizer with its switch."""

    def __init__(self, proto: onnx.ModelProto, source: str) -> None:
        super().__init__(proto, source, HANDLERS)
        self.switched = SwitchedForm(onnx.ModelProto())
        self._makers = {name: node for node in proto.graph.node for name in node.output}
        self._inputs: list[str] = []

    def give(self, node: onnx.NodeProto, tensor: str) -> None:
        grid = self.numbers[node.output[0]]
        slots = quantized_slots(node).output
        if grid.kind == np.int32 or grid.is_dynamic or slots is None:
            super().give(node, tensor)
            return
        number = len(self.switched.activations)
        least, most = self.bounds(tensor)
        quantizer = ActivationQuantizer(
            number=number,
            tensor=node.input[0] if node.op_type == "QuantizeLinear" else node.output[0],
            node=node.name,
            op_type=node.op_type,
            scale=input_name(node, slots.scale),
            zero_point=input_name(node, slots.zero),
            grid=grid,
            real=tensor,
            plain=tensor,
        )
        low, high = grid.limits
        if least < low - grid.scale / 2 or most > high + grid.scale / 2:
            quantizer = self._limit(quantizer)
        self.switched.activations.append(quantizer)
        self._insert(node, quantizer)

    def _limit(self, quantizer: ActivationQuantizer) -> ActivationQuantizer:
        """Add two ends that can do the work of a Relu or Clip where the quantizer is off; open by default."""
        ends = []
        for letter, end in (("low", -math.inf), ("high", math.inf)):
            ends.append(self.constant(f"{quantizer.limit_input}/{letter}", end, quantizer.grid.floats))
        self._inputs += ends
        raised = self.compute("Max", [quantizer.plain, ends[0]], f"{quantizer.limit_input}/raised")
        real = self.compute("Min", [raised, ends[1]], f"{quantizer.limit_input}/limited")
        return replace(quantizer, real=real)

    def _insert(self, node: onnx.NodeProto, quantizer: ActivationQuantizer) -> None:
        grid, stem = quantizer.grid, f"{_PREFIX}/{quantizer.number}"
        on = self.constant(quantizer.switch, True, np.bool_)
        scale = self.constant(quantizer.scale_input, grid.scale, grid.floats)
        zero = self.constant(quantizer.zero_input, grid.zero, grid.kind)
        self._inputs += [on, scale, zero]
        codes = self.compute("QuantizeLinear", [quantizer.real, scale, zero], f"{stem}/q")
        values = self.compute("DequantizeLinear", [codes, scale, zero], f"{stem}/dq")
        self.real[node.output[0]] = name = self.compute("Where", [on, values, quantizer.real], f"{stem}/out")
        self._bounds[name] = UNKNOWN
        self._note_range(name, grid)

    def weight(self, name: str, grid: StoredGrid, kind: type = np.float32) -> str:
        constant = super().weight(name, grid, kind)
        node = self.node
        is_pair = node.op_type == "DequantizeLinear"
        operands = quantized_slots(node).operands
        operand = next((o for o in operands if is_pair or f"{node.input[o.data]}/weight" == name), None)
        if operand is None:
            return constant
        data = node.input[operand.data]
        maker = self._makers.get(data)
        floats = None
        if maker is not None and maker.op_type == "QuantizeLinear":
            data, floats = maker.input[0], self.array(maker.input[0])
        self.switched.constants.append(
            StoredConstant(
                constant=constant,
                node=node.name,
                op_type=node.op_type,
                data=data,
                scale=input_name(node, operand.scale),
                zero_point=input_name(node, operand.zero),
                grid=grid,
                kind=np.asarray(self.array(node.input[operand.data])).dtype.name,
                floats=None if floats is None else np.asarray(floats, np.float32),
            )
        )
        self._inputs.append(constant)
        return constant

    def read_computed(self, name: str, grid: NumberGrid) -> str:
        own = self.numbers[name]
        if not own.is_dynamic and not own.agrees(grid):
            self.switched.shifted.append((self.node.name, name))
        return super().read_computed(name, grid)

    def build(self) -> SwitchedForm:
        """Return the form; the constants that layers read can be replaced too."""
        self.switched.proto = self.run().proto
        graph = self.switched.proto.graph
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        biases = [
            node.input[2]
            for node in graph.node
            if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2
        ]
        for name in dict.fromkeys((*self._inputs, *biases)):
            if name in tensors:
                tensor = tensors[name]
                graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        self.switched.proto.ir_version = max(self.switched.proto.ir_version, 4)
        self.switched.activations = _mark_symmetric(self.switched.activations)
        return self.switched


def _mark_symmetric(quantizers: list[ActivationQuantizer]) -> list[ActivationQuantizer]:
    """Return the quantizers; those with 0 in the middle are symmetric if half of their type are.

    One among asymmetric ones was calibrated on values that are as far below 0 as above.
    """
    centered: dict[str, list[bool]] = {}
    for quantizer in quantizers:
        centered.setdefault(quantizer.grid.kind.name, []).append(quantizer.is_centered)
    return [
        replace(q, is_symmetric=q.is_centered and 2 * sum(found := centered[q.grid.kind.name]) >= len(found))
        for q in quantizers
    ]


def switch_form(proto: onnx.ModelProto, source: str) -> SwitchedForm:
    """Return the float form of a normalised quantized model, with its switches.

    Raises ModelError for an operator without a float form, and for a model without quantizers.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _give_biases(copy)
    form = _SwitchedUnfolding(copy, source).build()
    if not form.activations and not form.constants:
        raise ModelError(f"{source} has no quantizers; give a quantized model, or quantize it first")
    return form


def _give_biases(proto: onnx.ModelProto) -> None:
    """Give integer convolutions without a bias one of zeros, so that a lost one can be tried."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        slot, weight = _BIASES.get(node.op_type, (0, 0))
        if not slot or input_name(node, slot):
            continue
        shape = _weight_shape(proto, node.input[weight], constants)
        if shape is None:
            continue
        by_columns = "Gemm" in node.op_type and not attributes_of(node).get("transB")
        kind = np.float32 if node.op_type in ("Conv", "Gemm") else np.int32
        name = f"{_PREFIX}/{node.name}/bias"
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(shape[int(by_columns)], kind), name))
        if slot < len(node.input):
            node.input[slot] = name
        else:
            node.input.append(name)


def _weight_shape(
    proto: onnx.ModelProto, name: str, constants: dict[str, onnx.TensorProto]
) -> tuple[int, ...] | None:
    """Return the shape of a float32 or integer weight, behind its pair; None if it is computed."""
    makers = {output: node for node in proto.graph.node for output in node.output}
    while name in makers and makers[name].op_type in ("QuantizeLinear", "DequantizeLinear"):
        scale = constants.get(makers[name].input[1])
        if scale is None or scale.data_type != onnx.TensorProto.FLOAT:
            return None
        name = makers[name].input[0]
    tensor = constants.get(name)
    if tensor is None or "float16" in tensor_array(tensor).dtype.name:
        return None
    return tuple(tensor.dims)

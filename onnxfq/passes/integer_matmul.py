"""Integer matmul: int8 products with exact integer sums and one final scale, as in a fused kernel.

Q/DQ in float32 rounds every term of a sum of products. A fused kernel adds up the integers in 32 bits and
multiplies the sum by the product of both scales (NVIDIA, explicit quantization; Jacob and others 2018,
equation 4). Here the integers are float32 numbers whose sums are exact. If a sum could exceed 2^24, one
operand is split into its upper and lower four bits, 16 a + b, and both sums are exact.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, replace_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import name_tensors
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.passes.integer_bounds import EXACT, IntegerOperand, longest, outer_axis

Array = NDArray[Any]

_FACTORS = ("alpha", "beta")
"""Attributes of Gemm: factor of the product, and factor of the addend."""


@dataclass(frozen=True)
class IntegerProducts:
    """The model with integer sums.

    Attributes:
        proto: the model.
        products: nodes that have integer sums now.
        left: other nodes -> the reason.
    """

    proto: onnx.ModelProto
    products: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)


def integer_products(proto: onnx.ModelProto) -> IntegerProducts:
    """Return a copy of a Q/DQ model whose int8 Conv, ConvTranspose, Gemm and MatMul add up integers.

    Products of other formats and products with zero points stay unchanged. Tensors of the main graph keep
    their names.
    """
    made = with_shapes(proto)
    name_tensors(made)
    index = GraphIndex.of_model(made)
    rewriters = [_MatMulRewriter(graph, index) for graph in list_graphs(made.graph)]
    for rewriter in reversed(rewriters):  # bodies first: a node is copied with its bodies
        rewriter.run()
    products = tuple(name for rewriter in rewriters for name in rewriter.products)
    return IntegerProducts(made, products, dict(ChainMap(*(rewriter.left for rewriter in rewriters))))


class _MatMulRewriter:
    def __init__(self, graph: onnx.GraphProto, index: GraphIndex) -> None:
        self.graph, self.index = graph, index
        self.makers, self.types, self.claim = self.index.makers, self.index.types, self.index.names.claim
        self.cast: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.products: list[str] = []
        self.left: dict[str, str] = {}

    def run(self) -> None:
        for node in list(self.graph.node):
            operands, why = self._operands(node)
            if why:
                self.left[node.name] = why
            if operands:
                self._rewrite(node, operands)
                self.products.append(node.name)
            else:
                self.nodes.append(node)
        replace_nodes(self.graph, self.nodes)

    def _operands(self, node: onnx.NodeProto) -> tuple[list[IntegerOperand], str]:
        """Return (both operands of an int8 product, ""), or (none, reason if one is quantized)."""
        slots = WEIGHTED_INPUTS.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()
        pairs = [self._pair(node.input[slot]) for slot in slots]
        quantized = [pair for pair, _ in pairs if pair is not None]
        if not quantized or len(slots) != 2:
            return [], ""
        if len(quantized) < len(slots):
            return [], "one side is float"
        operands = []
        for slot, (pair, order) in zip(slots, pairs, strict=True):
            assert pair is not None
            operand, why = self._operand(pair)
            if operand is None:
                return [], why
            if order is not None:
                operand = operand.transpose(order)
            if operand.axis not in (None, outer_axis(node, slot, len(operand.shape))):
                return [], f"the scales of {operand.integers!r} go along an axis that is added up"
            operands.append(operand)
        return operands, ""

    def _pair(self, tensor: str) -> tuple[onnx.NodeProto | None, Sequence[int] | None]:
        """Return the DQ that computes `tensor`, past Casts, and the order of a Transpose between."""
        order: Sequence[int] | None = None
        maker = self.makers.get(tensor)
        while maker is not None and maker.op_type in ("Cast", "Transpose"):
            if maker.op_type == "Transpose":
                perm = attributes_of(maker).get("perm")
                if perm is None or order is not None:
                    return None, None
                order = perm
            maker = self.makers.get(maker.input[0])
        return (maker, order) if maker is not None and maker.op_type == "DequantizeLinear" else (None, None)

    def _operand(self, pair: onnx.NodeProto) -> tuple[IntegerOperand | None, str]:
        """Return (the operand that `pair` computes, ""), or (None, reason) if it is not plain int8."""
        if self.types.get(pair.input[0]) != TensorProto.INT8:
            return None, "its numbers are not int8"
        scale, offset = self.index.array(pair.input[1]), self.index.array(input_name(pair, 2))
        if scale is None or (len(pair.input) > 2 and offset is None):
            return None, f"scale or zero point of {pair.input[0]!r} is computed"
        if offset is not None and np.any(offset):
            return None, f"{pair.input[0]!r} has a zero point"
        if attributes_of(pair).get("block_size", 0):
            return None, f"{pair.input[0]!r} has scales of blocks"
        values = self.index.array(pair.input[0])
        shape = self.index.shape(pair.input[0]) if values is None else values.shape
        if shape is None:
            return None, f"the shape of {pair.input[0]!r} is not known"
        numbers = scale.astype(np.float32)
        axis = attributes_of(pair).get("axis", 1) % max(len(shape), 1) if numbers.ndim else None
        return IntegerOperand(pair.input[0], numbers, axis, values, tuple(shape)), ""

    def _add(self, op: str, inputs: list[str], output: str, name: str = "", **attributes: Any) -> str:
        """Add a node that makes `output`, and has its name by default; return it."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=name or output, **attributes))
        return output

    def _rewrite(self, node: onnx.NodeProto, operands: list[IntegerOperand]) -> None:
        """Replace `node` by the integer product, its scale, its bias and a Cast to the output type."""
        slots, output = WEIGHTED_INPUTS[node.op_type], node.output[0]
        found = {a.name: a.f for a in node.attribute if a.name in _FACTORS}
        alpha, beta = (float(found.get(name, 1.0)) for name in _FACTORS)
        # Spatial axes follow the channels of a convolution, as in its weight.
        places = len(operands[1].shape) - 2 if node.op_type in CONVOLUTIONS else 0
        total = self._sums(node, operands)
        factor = self._factor(node, operands, places) * np.float32(alpha)
        scale = self._constant(f"{output}/scale", factor)
        half = self.types.get(output, TensorProto.FLOAT) != TensorProto.FLOAT
        bias = node.input[2] if len(node.input) > max(slots) + 1 and node.input[2] else ""
        last = output if not (half or bias) else self.claim(f"{output}/real")
        self._add("Mul", [total, scale], last, self.claim(f"{output}/mul"))
        if bias:
            summed = self.claim(f"{output}/sum") if half else output
            added = self._bias(output, bias, beta, places)
            last = self._add("Add", [last, added], summed, self.claim(f"{output}/add"))
        if half:
            self._add("Cast", [last], output, node.name, to=self.types[output])

    def _sums(self, node: onnx.NodeProto, operands: list[IntegerOperand]) -> str:
        """Add the product of the integers, without rounding; return its name."""
        output, slots = node.output[0], WEIGHTED_INPUTS[node.op_type]
        inputs = {slot: self._number(o) for slot, o in zip(slots, operands, strict=True)}

        def product(parts: dict[int, str], suffix: str) -> str:
            name = self.claim(f"{output}/{suffix}")
            given = [parts[slot] for slot in slots]
            made = helper.make_node(node.op_type, given, [name], name=self.claim(f"{node.name}/{suffix}"))
            made.attribute.extend(a for a in node.attribute if a.name not in _FACTORS)
            self.nodes.append(made)
            return name

        if longest(node, operands) <= EXACT:
            return product(inputs, "sums")
        split = next((i for i, o in enumerate(operands) if o.constant is not None), len(operands) - 1)
        halves = self._halves(inputs[slots[split]])
        parts = []
        for position, (half, suffix) in enumerate(zip(halves, ("upper", "lower"), strict=True)):
            if longest(node, operands, split, position) > EXACT:
                self.left[node.name] = "its sums are so long that they are exact to 24 bits only"
            parts.append(product({**inputs, slots[split]: half}, suffix))
        shifted, total = self.claim(f"{output}/upper16"), self.claim(f"{output}/sums")
        sixteen = self._constant(f"{output}/sixteen", np.float32(16))
        return self._add("Add", [self._add("Mul", [parts[0], sixteen], shifted), parts[1]], total)

    def _halves(self, integers: str) -> tuple[str, str]:
        """Add the nodes that split integers: floor(x / 16), and the remainder, 0 to 15."""
        key = f"{integers}/upper"
        if key not in self.cast:
            part, upper, shifted, lower = (
                self.claim(f"{integers}/{name}") for name in ("16th", "upper", "shifted", "lower")
            )
            sixteenth = self._constant(f"{integers}/sixteenth", np.float32(1 / 16))
            sixteen = self._constant(f"{integers}/sixteen", np.float32(16))
            self._add("Floor", [self._add("Mul", [integers, sixteenth], part)], upper)
            self._add("Sub", [integers, self._add("Mul", [upper, sixteen], shifted)], lower)
            self.cast[key], self.cast[f"{integers}/lower"] = upper, lower
        return self.cast[key], self.cast[f"{integers}/lower"]

    def _factor(self, node: onnx.NodeProto, operands: list[IntegerOperand], places: int) -> Array:
        """Return the product of both scales in float32, in a shape that broadcasts to the output."""
        factor = np.ones((), np.float32)
        for slot, operand in zip(WEIGHTED_INPUTS[node.op_type], operands, strict=True):
            scale = operand.scale
            if operand.axis is not None:
                # The columns of a matrix follow its rows.
                scale = scale.reshape(-1, *[1] * (places or int(slot == 0)))
            factor = (factor * scale).astype(np.float32)
        return factor

    def _bias(self, output: str, bias: str, beta: float, places: int) -> str:
        """Return the name of the bias in float32, times `beta`, in a shape that broadcasts to `output`."""
        stored = self.index.array(bias)
        if stored is not None:
            values = stored.astype(np.float32) * np.float32(beta)
            return self._constant(f"{output}/bias", values.reshape(-1, *[1] * places) if places else values)
        wide = self._float(bias) if self.types.get(bias) != TensorProto.FLOAT else bias
        if places:
            shape = self._constant(f"{output}/shape", np.array([-1, *[1] * places], np.int64))
            wide = self._add("Reshape", [wide, shape], self.claim(f"{bias}/shaped"))
        if beta == 1.0:
            return wide
        name, factor = self.claim(f"{bias}/beta"), self._constant(f"{bias}/factor", np.float32(beta))
        return self._add("Mul", [wide, factor], name)

    def _number(self, operand: IntegerOperand) -> str:
        """Return the name of the integers as float32, behind the Transpose if there is one."""
        given = self._float(operand.integers)
        if operand.order is None:
            return given
        key = f"{given}/{operand.order}"
        if key not in self.cast:
            name = self.claim(f"{given}/transposed")
            self.cast[key] = self._add("Transpose", [given], name, perm=list(operand.order))
        return self.cast[key]

    def _float(self, tensor: str) -> str:
        if tensor not in self.cast:
            name = self.claim(f"{tensor}/number")
            self.cast[tensor] = self._add("Cast", [tensor], name, to=TensorProto.FLOAT)
        return self.cast[tensor]

    def _constant(self, name: str, values: Array | np.generic) -> str:
        free = self.claim(name)
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(values), free))
        return free

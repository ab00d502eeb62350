"""Float equivalents of integer operators: one function for each kind of operator, and their table."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.errors import ModelError
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.quantized.float_form import WEIGHT, Handler, Unfolding
from onnxfq.quantized.nbits import read_nbits
from onnxfq.quantized.number_grids import GridOperand, quantized_slots
from onnxfq.quantized.pairs import give_numbers, read_dynamic_fake, read_fake, read_numbers

_OWN_ATTRIBUTES = frozenset({"channels_last", "opset"})


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {name: value for name, value in attributes_of(node).items() if name not in _OWN_ATTRIBUTES}


def _dynamic(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert DynamicQuantizeLinear: its numbers stand for x in units of 1."""
    unfolding.real[node.output[0]] = unfolding.name(node.input[0])
    unfolding.quantized.add(node.output[0])
    unfolding.form.changes["DynamicQuantizeLinear left out, to be made static"] += 1


def _linear(op: str, bias: int | None = None) -> Handler:
    """Return the handler of an operator with quantized operands and a quantized output, if it has any.

    Args:
        op: the float operator.
        bias: input that holds a bias of int32, whose scale is the product of the scales of the operands.
    """

    def handle(unfolding: Unfolding, node: onnx.NodeProto) -> None:
        slots = quantized_slots(node)
        inputs = [
            unfolding.read(node, operand, _channel_axis(unfolding, node, operand))
            for operand in slots.operands
        ]
        if node.op_type == "QLinearWhere":
            inputs.insert(0, unfolding.name(node.input[0]))
        if bias is not None and input_name(node, bias):
            inputs.append(_bias(unfolding, node, bias, slots.operands))
        real = node.output[0] if slots.output is None else unfolding.names.claim(f"{node.output[0]}/real")
        weighted = op in WEIGHTED_INPUTS
        _emit_channels_first(unfolding, node, op, inputs, real)
        if weighted:
            unfolding.form.inputs[node.name] = {0, 1}
        unfolding.form.changes[f"{node.op_type} made {op}{' with pairs' if weighted else ''}"] += 1
        if slots.output is not None:
            unfolding.give(node, real)

    return handle


def _channel_axis(unfolding: Unfolding, node: onnx.NodeProto, operand: GridOperand) -> int:
    """Return the axis of the output channels of a stored operand."""
    if node.op_type in ("ConvInteger", "QLinearConv") or attributes_of(node).get("transB"):
        return 0
    stored = unfolding.array(node.input[operand.data])
    return 0 if stored is None else max(stored.ndim - 1, 0)


def _emit_channels_first(
    unfolding: Unfolding, node: onnx.NodeProto, op: str, inputs: list[str], output: str
) -> None:
    """Add `op`, between Transpose nodes if `node` has its channels last (onnxruntime's optimizer)."""
    if not attributes_of(node).get("channels_last", node.op_type == "NhwcMaxPool"):
        unfolding.emit(op, inputs, [output], node, **_attributes(node))
        return
    weight = unfolding.array(inputs[1]) if op == "Conv" else None
    rank = len(attributes_of(node).get("kernel_shape", ())) + 2 if weight is None else weight.ndim
    rank = rank if rank > 2 else unfolding.ranks.get(inputs[0], 0)
    if not rank:
        raise ModelError(
            f"{unfolding.source}: {node.op_type} {node.name!r} has its channels last and no known rank; "
            "export it as NCHW"
        )
    turned, order = unfolding.names.claim(f"{output}/turned"), [0, rank - 1, *range(1, rank - 1)]
    first = unfolding.compute("Transpose", [inputs[0]], f"{output}/channels_first", perm=order)
    unfolding.emit(op, [first, *inputs[1:]], [turned], node, **_attributes(node))
    unfolding.emit("Transpose", [turned], [output], output, perm=[0, *range(2, rank), 1])
    if inputs[0] in unfolding.form.ranges:
        unfolding.form.ranges[first] = unfolding.form.ranges[inputs[0]]


def _nhwc_max_pool(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert NhwcMaxPool: MaxPool of quantized numbers with the channels last."""
    _emit_channels_first(unfolding, node, "MaxPool", [unfolding.real_numbers(node.input[0])], node.output[0])
    unfolding.real[node.output[0]] = node.output[0]
    unfolding.form.changes["NhwcMaxPool made MaxPool"] += 1


def _bias(unfolding: Unfolding, node: onnx.NodeProto, slot: int, operands: tuple[GridOperand, ...]) -> str:
    """Return the float constant of an int32 bias, whose scale is the product of two other scales."""
    stored = unfolding.array(node.input[slot])
    if stored is None:
        raise ModelError(
            f"{unfolding.source}: {node.op_type} {node.name!r} computes its bias {node.input[slot]!r}; make "
            "it constant"
        )
    scales = [unfolding.parameters(node, operand)[0] for operand in operands]
    factor = np.multiply(*(scale.astype(np.float64) for scale in scales))
    unfolding.form.changes["int32 constant, such as a bias, made float"] += 1
    return unfolding.constant(f"{node.input[slot]}/float", (stored * factor).astype(np.float32))


def _cast(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert a Cast: of quantized numbers, it gives the numbers themselves."""
    name, to = node.input[0], attributes_of(node)["to"]
    grid = unfolding.numbers.get(name)
    if grid is None:
        unfolding.keep(node)
    elif node.output[0] in unfolding.numbers:  # to their own type
        unfolding.real[node.output[0]] = unfolding.real_numbers(name)
    else:
        plain = unfolding.read_computed(name, grid.plain)
        if to == helper.np_dtype_to_tensor_dtype(grid.floats):
            unfolding.real[node.output[0]] = plain
            return
        if to in _WHOLE_TYPES:
            plain = unfolding.compute("Round", [plain], f"{node.output[0]}/rounded")
        unfolding.emit("Cast", [plain], list(node.output), node)


_WHOLE_TYPES = tuple(helper.np_dtype_to_tensor_dtype(np.dtype(k)) for k in "bBhHiIlLqQ")


def _product_of_stored(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert MatMulIntegerToFloat and DynamicQuantizeMatMul: a product in float, with a bias."""
    a = input_name(node, 0)
    if node.op_type == "MatMulIntegerToFloat":
        first, second = quantized_slots(node).operands
        a, bias = unfolding.read(node, first), 6
    else:
        a, second, bias = unfolding.name(a), GridOperand(1, 2, 3), 4
    b = unfolding.read(node, second, _channel_axis(unfolding, node, second))
    _product(unfolding, node, [a, b], input_name(node, bias))


def _product(unfolding: Unfolding, node: onnx.NodeProto, inputs: list[str], bias: str) -> None:
    output = node.output[0]
    product = unfolding.names.claim(f"{output}/product") if bias else output
    unfolding.emit("MatMul", inputs, [product], node)
    unfolding.form.inputs[node.name] = {0, 1}
    unfolding.form.changes[f"{node.op_type} made MatMul with pairs"] += 1
    if bias:
        like = unfolding.names.claim(f"{node.name}/bias")
        unfolding.emit("Add", [product, unfolding.name(bias)], [output], like)


def _attention(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert QAttention: a quantized projection to queries, keys and values, and attention in float."""
    if input_name(node, 8) or len([name for name in node.output if name]) > 1:
        raise ModelError(
            f"{unfolding.source}: QAttention {node.name!r} has past keys and values, which have no known "
            "float form; export it without them, or quantize the float model again"
        )
    stem = node.output[0]
    inputs = [unfolding.read(node, operand, 1) for operand in quantized_slots(node).operands]
    product = unfolding.compute("MatMul", inputs, f"{stem}/product")
    unfolding.form.inputs[product] = {0, 1}
    projected = unfolding.compute("Add", [product, unfolding.name(node.input[2])], f"{stem}/all")
    parts = [unfolding.names.claim(f"{stem}/{letter}") for letter in "qkv"]
    split = {"axis": -1} if unfolding.opset < 18 else {"axis": -1, "num_outputs": 3}
    unfolding.emit("Split", [projected], parts, f"{projected}/split", **split)
    attributes = {k: v for k, v in _attributes(node).items() if k in _ATTENTION_ATTRIBUTES}
    mask = [input_name(node, 5)] if input_name(node, 5) else []
    inputs = [*parts, "", *mask] if mask else parts
    unfolding.emit(
        "MultiHeadAttention", inputs, [node.output[0]], node.name, domain=node.domain, **attributes
    )
    unfolding.form.changes["QAttention made MatMul with pairs, and MultiHeadAttention in float"] += 1


_ATTENTION_ATTRIBUTES = ("mask_filter_value", "num_heads", "scale", "unidirectional")


def _by_direction(given: NDArray[Any] | None) -> NDArray[np.float32]:
    """Return numbers for each direction, or each direction and channel, shaped for [directions, in, out]."""
    values = np.zeros(1, np.float32) if given is None else given.astype(np.float32)
    return values[:, None, :] if values.ndim == 2 else values.reshape(-1, 1, 1)


def _lstm(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert DynamicQuantizeLSTM, which has the weights of LSTM with the last two axes swapped."""
    weights = []
    for slot, (scale, zero_point) in ((1, (8, 9)), (2, (10, 11))):
        stored = unfolding.array(node.input[slot])
        if stored is None:
            raise ModelError(
                f"{unfolding.source}: DynamicQuantizeLSTM {node.name!r} computes its weights "
                f"{node.input[slot]!r}; make them constant"
            )
        factor, zero = (_by_direction(unfolding.parameter(node, slot)) for slot in (scale, zero_point))
        real = (stored.astype(np.float32) - zero) * factor
        weights.append(unfolding.constant(f"{node.input[slot]}/real", real.transpose(0, 2, 1)))
    inputs = [unfolding.name(node.input[0]), *weights, *map(unfolding.name, node.input[3:8])]
    while not inputs[-1]:
        inputs.pop()
    unfolding.emit("LSTM", inputs, list(node.output), node, **_attributes(node))
    unfolding.form.changes["DynamicQuantizeLSTM made LSTM, in float"] += 1


def _matmul_nbits(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert MatMulNBits."""
    stored = read_nbits(node, unfolding.array)
    weight = unfolding.weight(f"{node.input[1]}{WEIGHT}", stored.grid.transpose(), stored.scale.dtype)
    _product(unfolding, node, [unfolding.name(node.input[0]), weight], input_name(node, 5))
    unfolding.form.inputs[node.name] = {1}


def _gather_blocks(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert GatherBlockQuantized: rows of a table."""
    stored = read_nbits(node, unfolding.array)
    table = unfolding.weight(f"{node.input[0]}{WEIGHT}", stored.grid, stored.scale.dtype)
    unfolding.emit("Gather", [table, unfolding.name(node.input[1])], list(node.output), node.name, axis=0)
    unfolding.form.changes["GatherBlockQuantized made Gather, in float"] += 1


HANDLERS: dict[str, Handler] = {
    "Cast": _cast,
    "ConvInteger": _linear("Conv"),
    "DequantizeLinear": read_numbers,
    "DynamicFakeQuantize": read_dynamic_fake,
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeLinear": _dynamic,
    "DynamicQuantizeMatMul": _product_of_stored,
    "FakeQuantize": read_fake,
    "GatherBlockQuantized": _gather_blocks,
    "MatMulInteger": _linear("MatMul"),
    "MatMulIntegerToFloat": _product_of_stored,
    "MatMulNBits": _matmul_nbits,
    "NhwcMaxPool": _nhwc_max_pool,
    "QAttention": _attention,
    "QGemm": _linear("Gemm", bias=6),
    "QLinearAdd": _linear("Add"),
    "QLinearAveragePool": _linear("AveragePool"),
    "QLinearConcat": _linear("Concat"),
    "QLinearConv": _linear("Conv", bias=8),
    "QLinearGlobalAveragePool": _linear("GlobalAveragePool"),
    "QLinearLeakyRelu": _linear("LeakyRelu"),
    "QLinearMatMul": _linear("MatMul"),
    "QLinearMul": _linear("Mul"),
    "QLinearSigmoid": _linear("Sigmoid"),
    "QLinearSoftmax": _linear("Softmax"),
    "QLinearWhere": _linear("Where"),
    "QuantizeLinear": give_numbers,
}

"""Float equivalents of integer operators: one function per operator, and their table."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.errors import ModelError
from onnxfq.graph.stored_grid import grid_of
from onnxfq.interchange.quantized_models.dequantize import Handler, Unfolding, find_stored_type
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import QTYPES

_OWN_ATTRIBUTES = frozenset({"channels_last", "opset"})


def _attributes(node: onnx.NodeProto) -> dict[str, object]:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: value for name, value in given.items() if name not in _OWN_ATTRIBUTES}


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return int(next((a.i for a in node.attribute if a.name == name), default))


def _quantize(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    tensor = unfolding.name(node.input[0])
    scale, zero_point = unfolding.parameters(node, 1, 2)
    values = unfolding.array(tensor)
    if values is None:
        unfolding.real[node.output[0]] = unfolding.saturate(tensor, node, scale, zero_point)
        return
    # A float constant with Q: the model computes with the rounded values.
    kind = helper.np_dtype_to_tensor_dtype(find_stored_type(node, zero_point))
    qtype = next(one for one in QTYPES.values() if one.onnx_type == kind)
    offset = 0 if zero_point is None else zero_point
    granularity = Granularity.of(_attribute(node, "axis", 1), _attribute(node, "block_size", 0))
    codes = quantize(values.astype(np.float32), scale, offset, qtype=qtype, granularity=granularity)
    unfolding.real[node.output[0]] = _constant(unfolding, node, f"{tensor}/rounded", codes, scale, zero_point)


def _dequantize(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    name, output = node.input[0], node.output[0]
    stored = unfolding.array(name)
    scale, zero_point = unfolding.parameters(node, 1, 2)
    unfolding.quantized.add(output)
    if stored is not None and name not in unfolding.real:
        made = _constant(unfolding, node, output, stored, scale, zero_point)
        if stored.dtype == np.int32:
            unfolding.form.changes["int32 constant, such as a bias, made float"] += 1
            unfolding.form.grids.pop(made)
        unfolding.real[output] = made
    elif name in unfolding.inputs:
        unfolding.real[output] = unfolding.dequantize_input(name, scale, zero_point)
    elif name in unfolding.real:
        unfolding.real[output] = unfolding.real[name]
    else:
        unfolding.real[output] = unfolding.unfold_computed(name, scale, zero_point)


def _constant(
    unfolding: Unfolding,
    node: onnx.NodeProto,
    name: str,
    stored: NDArray[Any],
    scale: NDArray[Any],
    zero_point: NDArray[Any] | None,
) -> str:
    """Add the float constant of stored numbers, and return its name."""
    axis, block = _attribute(node, "axis", 1), _attribute(node, "block_size", 0)
    if "float" not in stored.dtype.name:
        return unfolding.weight(name, grid_of(stored, scale, zero_point, axis, block))
    factor = grid_of(np.ones(stored.shape, np.int8), scale, None, axis, block).values
    return unfolding.constant(name, stored.astype(np.float32) * factor)


def _dynamic(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert DynamicQuantizeLinear: its numbers stand for x in units of 1."""
    unfolding.real[node.output[0]] = unfolding.name(node.input[0])
    unfolding.quantized.add(node.output[0])
    for name, value in zip(node.output[1:], (1.0, 0.0), strict=False):
        unfolding.real[name] = unfolding.constant(f"{name}/unit", np.float32(value))
    unfolding.form.changes["DynamicQuantizeLinear left out, to be made static"] += 1


def _qlinear_conv(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    x = unfolding.real_input(node, 0, 1, 2, "data")
    w = unfolding.real_input(node, 3, 4, 5, "weight")
    inputs = [x, w]
    if len(node.input) > 8 and node.input[8]:
        inputs.append(_bias(unfolding, node, 8, 1, 4))
    _unfold_weighted(unfolding, node, "Conv", inputs)
    unfolding.give(node, f"{node.output[0]}/real", 6, 7)


def _bias(unfolding: Unfolding, node: onnx.NodeProto, slot: int, scale: int, other: int) -> str:
    """Return the float constant of an int32 bias, whose scale is the product of two other scales."""
    stored = unfolding.array(node.input[slot])
    if stored is None:
        raise ModelError(
            f"{node.op_type} {node.name!r} computes its bias {node.input[slot]!r}; make it constant"
        )
    factors = [unfolding.parameter(node, one) for one in (scale, other)]
    assert factors[0] is not None and factors[1] is not None, "a scale is no optional input"
    factor = factors[0].astype(np.float64) * factors[1].astype(np.float64)
    unfolding.form.changes["int32 constant, such as a bias, made float"] += 1
    return unfolding.constant(f"{node.input[slot]}/float", (stored * factor).astype(np.float32))


def _unfold_weighted(unfolding: Unfolding, node: onnx.NodeProto, op: str, inputs: list[str]) -> None:
    real = f"{node.output[0]}/real"
    unfolding.emit(op, inputs, [real], node, **_attributes(node))
    unfolding.form.inputs[node.name] = {0, 1}
    unfolding.form.changes[f"{node.op_type} made {op} with pairs"] += 1


def _qlinear_matmul(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    inputs = [unfolding.real_input(node, 0, 1, 2, "weight"), unfolding.real_input(node, 3, 4, 5, "weight")]
    _unfold_weighted(unfolding, node, "MatMul", inputs)
    unfolding.give(node, f"{node.output[0]}/real", 6, 7)


def _qgemm(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    a = unfolding.real_input(node, 0, 1, 2, "weight")
    stored = unfolding.array(node.input[3])
    scale, zero_point = unfolding.parameters(node, 4, 5)
    if stored is None:
        b = unfolding.real_input(node, 3, 4, 5, "weight")
    else:
        b = unfolding.weight(
            f"{node.input[3]}/weight",
            grid_of(stored, scale, zero_point, 0 if _attribute(node, "transB", 0) else 1),
        )
    inputs = [a, b]
    if len(node.input) > 6 and node.input[6]:
        inputs.append(_bias(unfolding, node, 6, 1, 4))
    if len(node.input) > 7 and node.input[7]:
        _unfold_weighted(unfolding, node, "Gemm", inputs)
        unfolding.give(node, f"{node.output[0]}/real", 7, 8)
    else:
        _unfold_weighted(unfolding, node, "Gemm", inputs)
        unfolding.real[node.output[0]] = f"{node.output[0]}/real"


def _make_unary_handler(op: str) -> Handler:
    """Return the handler of an operator with inputs x, scale, zero point, scale and zero point of y."""

    def handle(unfolding: Unfolding, node: onnx.NodeProto) -> None:
        if _attribute(node, "channels_last", 0):
            raise ModelError(f"{node.op_type} {node.name!r} has its channels last; export it as NCHW")
        x = unfolding.real_input(node, 0, 1, 2, "data")
        unfolding.emit(op, [x], [f"{node.output[0]}/real"], node, **_attributes(node))
        unfolding.form.changes[f"{node.op_type} made {op}"] += 1
        unfolding.give(node, f"{node.output[0]}/real", 3, 4)

    return handle


def _two_inputs(op: str) -> Handler:
    def handle(unfolding: Unfolding, node: onnx.NodeProto) -> None:
        inputs = [unfolding.real_input(node, slot, slot + 1, slot + 2, "data") for slot in (0, 3)]
        unfolding.emit(op, inputs, [f"{node.output[0]}/real"], node)
        unfolding.form.changes[f"{node.op_type} made {op}"] += 1
        unfolding.give(node, f"{node.output[0]}/real", 6, 7)

    return handle


def _concat(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    inputs = [
        unfolding.real_input(node, slot, slot + 1, slot + 2, "data") for slot in range(2, len(node.input), 3)
    ]
    unfolding.emit("Concat", inputs, [f"{node.output[0]}/real"], node, **_attributes(node))
    unfolding.form.changes["QLinearConcat made Concat"] += 1
    unfolding.give(node, f"{node.output[0]}/real", 0, 1)


def _integer(op: str) -> Handler:
    """Return the handler of ConvInteger or MatMulInteger: an integer product with a scale behind it."""

    def handle(unfolding: Unfolding, node: onnx.NodeProto) -> None:
        inputs = [_whole(unfolding, node, slot, slot + 2) for slot in (0, 1)]
        unfolding.emit(op, inputs, list(node.output), node, **_attributes(node))
        unfolding.form.inputs[node.name] = {0, 1}
        unfolding.form.changes[f"{node.op_type} made {op} with pairs"] += 1
        unfolding.quantized.add(node.output[0])

    return handle


def _whole(unfolding: Unfolding, node: onnx.NodeProto, slot: int, zero_point: int) -> str:
    stored = unfolding.array(node.input[slot])
    if stored is None:
        return unfolding.name(node.input[slot])
    given = node.input[zero_point] if zero_point < len(node.input) else ""
    offset = unfolding.array(given) if given else None
    axis = 0 if node.op_type == "ConvInteger" else stored.ndim - 1
    scale = np.ones(() if offset is None else offset.shape, np.float32)
    return unfolding.weight(f"{node.input[slot]}/weight", grid_of(stored, scale, offset, axis))


def _cast(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert a Cast of an integer product, which is float already."""
    if node.input[0] in unfolding.quantized and _attribute(node, "to", 0) == onnx.TensorProto.FLOAT:
        unfolding.real[node.output[0]] = unfolding.name(node.input[0])
    else:
        unfolding.keep(node)


def _to_float_product(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert MatMulIntegerToFloat: A, B, scale of A, scale of B, zero points of both, bias."""
    _product_of_stored(unfolding, node, scale=3, zero_point=5, bias=6)


def _dynamic_product(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert DynamicQuantizeMatMul: A in float, B, its scale and zero point, bias."""
    _product_of_stored(unfolding, node, scale=2, zero_point=3, bias=4)


def _product_of_stored(
    unfolding: Unfolding, node: onnx.NodeProto, *, scale: int, zero_point: int, bias: int
) -> None:
    """Convert a product with a stored second matrix, whose scale, zero point and bias are these inputs."""
    given = dict(enumerate(node.input))
    stored, scales = unfolding.array(node.input[1]), unfolding.array(node.input[scale])
    offset = unfolding.array(given[zero_point]) if given.get(zero_point) else None
    if stored is None or scales is None:
        raise ModelError(
            f"{node.op_type} {node.name!r} computes its second input; only constant ones are known"
        )
    a = unfolding.name(node.input[0])
    b = unfolding.weight(f"{node.input[1]}/weight", grid_of(stored, scales, offset, stored.ndim - 1))
    _product(unfolding, node, [a, b], given.get(bias, ""))


def _product(unfolding: Unfolding, node: onnx.NodeProto, inputs: list[str], bias: str) -> None:
    output = node.output[0]
    unfolding.emit("MatMul", inputs, [f"{output}/product" if bias else output], node)
    unfolding.form.inputs[node.name] = {0, 1}
    unfolding.form.changes[f"{node.op_type} made MatMul with pairs"] += 1
    if bias:
        like = helper.make_node("Add", [], [], name=f"{node.name}/bias")
        unfolding.emit("Add", [f"{output}/product", unfolding.name(bias)], [output], like)


def _matmul_nbits(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert MatMulNBits: numbers of 2, 4 or 8 bits packed along K in blocks, the lowest bits first."""
    size = {name: _attribute(node, name, 0) for name in ("K", "N", "bits", "block_size")}
    packed, scale = unfolding.array(node.input[1]), unfolding.array(node.input[2])
    zeros = unfolding.array(node.input[3]) if len(node.input) > 3 and node.input[3] else None
    group = node.input[4] if len(node.input) > 4 else ""
    bias = node.input[5] if len(node.input) > 5 else ""
    if packed is None or scale is None or group or (zeros is not None and zeros.dtype != np.uint8):
        raise ModelError(
            f"MatMulNBits {node.name!r} has computed weights, a group index or zero points of another type "
            "than uint8; only the plain form is known"
        )
    k, n, bits, block = size["K"], size["N"], size["bits"], size["block_size"]
    blocks = -(-k // block)
    numbers = _unpack_bits(packed.reshape(n, -1), bits)[:, :k]
    middle = np.full((n, blocks), 1 << (bits - 1), np.int32)
    offset = middle if zeros is None else _unpack_bits(zeros.reshape(n, -1), bits)[:, :blocks]
    grid = grid_of(numbers, scale.reshape(n, blocks), offset, 1, block).transpose()
    inputs = [unfolding.name(node.input[0]), unfolding.weight(f"{node.input[1]}/weight", grid)]
    _product(unfolding, node, inputs, bias)
    unfolding.form.inputs[node.name] = {1}


def _unpack_bits(bytes_: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    parts = [(bytes_ >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(bytes_.shape[0], -1).astype(np.int32)


HANDLERS: dict[str, Handler] = {
    "Cast": _cast,
    "ConvInteger": _integer("Conv"),
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulInteger": _integer("MatMul"),
    "MatMulIntegerToFloat": _to_float_product,
    "MatMulNBits": _matmul_nbits,
    "QGemm": _qgemm,
    "QLinearAdd": _two_inputs("Add"),
    "QLinearAveragePool": _make_unary_handler("AveragePool"),
    "QLinearConcat": _concat,
    "QLinearConv": _qlinear_conv,
    "QLinearGlobalAveragePool": _make_unary_handler("GlobalAveragePool"),
    "QLinearLeakyRelu": _make_unary_handler("LeakyRelu"),
    "QLinearMatMul": _qlinear_matmul,
    "QLinearMul": _two_inputs("Mul"),
    "QLinearSigmoid": _make_unary_handler("Sigmoid"),
    "QLinearSoftmax": _make_unary_handler("Softmax"),
    "QuantizeLinear": _quantize,
}

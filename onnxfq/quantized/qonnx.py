"""`pairs_of_qonnx`: quantizers of QONNX, the form of Brevitas and FINN, as pairs with a Clip of the numbers.

Rules: https://github.com/fastmachinelearning/qonnx, docs/qonnx-custom-ops.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import standard_form
from onnxfq.graph.model import replace_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.opset import raise_opset

OPERATORS = ("BipolarQuant", "FloatQuant", "IntQuant", "Quant", "Trunc")
DOMAINS = ("finn.custom_op.general", "onnx.brevitas", "qonnx.custom_op.general")

_OPSET = 13
"""The first opset in which pairs have an axis."""


def pairs_of_qonnx(proto: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """Return the model with a pair for each Quant, or `proto` itself if it has none.

    Between Q and DQ stands a Clip where the numbers are fewer than their type has. A constant of more than 8
    bits, such as a bias, becomes int32.

    Raises ModelError for a computed scale, zero point or bit width, for activations of more than 8 bits, for
    another rounding than to the nearest, and for QONNX's other quantizers.
    """
    if not any(is_quantizer(node) for node in proto.graph.node):
        return proto
    standard_form(proto)
    raised, _ = raise_opset(proto, _OPSET, source)
    graph, writer = raised.graph, _Writer(raised, source)
    nodes = [part for node in graph.node for part in (writer.write(node) if is_quantizer(node) else [node])]
    replace_nodes(graph, nodes)
    return raised


def is_quantizer(node: onnx.NodeProto) -> bool:
    """Tell whether a node quantizes in the form of QONNX."""
    return node.op_type in OPERATORS and node.domain in DOMAINS


class _Writer:
    """Writes pairs into one model."""

    def __init__(self, proto: onnx.ModelProto, source: str) -> None:
        self._graph, self._source = proto.graph, source
        index = GraphIndex.of_model(proto)
        self._constants, self._names = index.constants, index.names

    def write(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes in place of a quantizer."""
        given = attributes_of(node)
        if node.op_type not in ("IntQuant", "Quant"):
            self._refuse(node, "is of another kind than Quant")
        if given.get("rounding_mode", b"ROUND").upper() not in (b"ROUND", b"HALF_EVEN"):
            self._refuse(node, f"rounds by {given['rounding_mode'].decode()}")
        scale, zero, width = (self._parameter(node, slot) for slot in (1, 2, 3))
        bits = float(width.reshape(-1)[0])
        if width.size != 1 or bits != int(bits) or (zero != np.rint(zero)).any():
            self._refuse(node, "has several bit widths, or a width or zero point that is not whole")
        if sum(size > 1 for size in scale.shape) > 1:
            self._refuse(node, f"has scales of shape {scale.shape}, along several axes")
        codes = _codes(int(bits), bool(given.get("signed", 1)), bool(given.get("narrow", 0)))
        if bits > 8:
            return self._store(node, scale, zero, codes)
        kind = np.dtype(np.int8 if given.get("signed", 1) else np.uint8)
        shape, axis = _along_axis(scale.shape)
        zeros = np.broadcast_to(zero, scale.shape).astype(kind)
        step = self._add(f"{node.name}/scale", scale.astype(np.float32).reshape(shape))
        parameters = [step, self._add(f"{node.name}/zero_point", zeros.reshape(shape))]
        output = node.output[0]
        numbers, clipped = (self._names.claim(f"{output}/{part}") for part in ("numbers", "clipped"))
        quantize = helper.make_node(
            "QuantizeLinear", [node.input[0], *parameters], [numbers], node.name, axis=axis
        )
        ends = [self._add(f"{node.name}/end", np.asarray(code, kind)) for code in codes]
        clip = helper.make_node("Clip", [numbers, *ends], [clipped], clipped)
        is_whole = codes == (np.iinfo(kind).min, np.iinfo(kind).max)
        name = self._names.claim(f"{node.name}/dequantize")
        inputs = [numbers if is_whole else clipped, *parameters]
        dequantize = helper.make_node("DequantizeLinear", inputs, [output], name, axis=axis)
        return [quantize, dequantize] if is_whole else [quantize, clip, dequantize]

    def _store(
        self, node: onnx.NodeProto, scale: NDArray[Any], zero: NDArray[Any], codes: tuple[int, int]
    ) -> list[onnx.NodeProto]:
        """Return the DequantizeLinear of a constant of many bits."""
        tensor = self._constants.get(node.input[0])
        if tensor is None:
            self._refuse(node, "gives an activation more than 8 bits")
        values = np.asarray(tensor_array(tensor), np.float64)
        numbers = np.clip(np.rint(values / scale + zero), *codes) - zero
        shape, axis = _along_axis(scale.shape)
        integers = np.clip(numbers, -(2**31), 2**31 - 1).astype(np.int32)
        stored = self._add(f"{node.input[0]}/numbers", integers)
        inputs = [stored, self._add(f"{node.name}/scale", scale.astype(np.float32).reshape(shape))]
        return [helper.make_node("DequantizeLinear", inputs, list(node.output), node.name, axis=axis)]

    def _parameter(self, node: onnx.NodeProto, slot: int) -> NDArray[Any]:
        tensor = self._constants.get(input_name(node, slot))
        if tensor is None:
            self._refuse(node, f"computes its parameter {input_name(node, slot)!r}")
        return np.asarray(tensor_array(tensor))

    def _add(self, stem: str, values: NDArray[Any]) -> str:
        name = self._names.claim(stem)
        self._graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _refuse(self, node: onnx.NodeProto, why: str) -> NoReturn:
        raise ModelError(
            f"{self._source}: {node.op_type} {node.name!r} of QONNX {why}, for which there is no pair; "
            "export Q/DQ with Brevitas' export_onnx_qcdq or qonnx' QuantToQCDQ"
        )


def _codes(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """Return the smallest and the largest number; a narrow range leaves out one at the longer side."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow


def _along_axis(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the shape of a scale as pairs have it, and its axis."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    return ((shape[axes[0]],), axes[0]) if len(axes) == 1 else ((), 0)

"""Outputs of quantized numbers as real ones, in which files are compared, and back."""

from __future__ import annotations

from copy import deepcopy
from math import prod

import onnx
from onnx import helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import input_name, numbers_type
from onnxfq.graph.ops import DATA_MOVEMENT
from onnxfq.graph.walk import rename_tensors

_NUMBERS = "/numbers"


def give_real_outputs(proto: onnx.ModelProto) -> None:
    """Dequantize, in place, each output of numbers that a QuantizeLinear with one scale makes."""
    index, graph = GraphIndex.of_model(proto), proto.graph
    for value in graph.output:
        quantizer = _find_quantizer(index, value.name)
        scale = None if quantizer is None else index.constants.get(quantizer.input[1])
        if quantizer is None or scale is None or prod(scale.dims) != 1:
            continue
        numbers = value.name + _NUMBERS
        rename_tensors(graph.node, {value.name: numbers})
        graph.node.append(
            helper.make_node("DequantizeLinear", [numbers, *quantizer.input[1:]], [value.name], numbers)
        )
        value.type.tensor_type.elem_type = scale.data_type


def take_back_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the outputs that it had before `give_real_outputs`."""
    given = deepcopy(proto)
    index, graph = GraphIndex.of_model(given), given.graph
    for value in graph.output:
        node, numbers = index.makers.get(value.name), value.name + _NUMBERS
        quantizer = _find_quantizer(index, numbers)
        if node is None or quantizer is None or node.input[0] != numbers:
            continue
        zero = index.types.get(input_name(quantizer, 2))
        value.type.tensor_type.elem_type = numbers_type(quantizer, zero)
        graph.node.remove(node)
        rename_tensors(graph.node, {numbers: value.name})
    return given


def _find_quantizer(index: GraphIndex, name: str) -> onnx.NodeProto | None:
    """Return the QuantizeLinear whose numbers a tensor has, moved or not."""
    maker = index.makers.get(index.origin(name, DATA_MOVEMENT))
    return maker if maker is not None and maker.op_type == "QuantizeLinear" else None

"""`write_products`: products of dynamic numbers, as ONNX Runtime writes them, as products of floats."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxfq.diagnosis.reading.quantizers import PREFIX
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import input_name

_PRODUCTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


def write_products(proto: onnx.ModelProto) -> None:
    """Write, in place, each product of dynamic numbers and its scales with floats and a stored weight."""
    index, nodes = GraphIndex.of_model(proto), proto.graph.node
    for node in list(nodes):
        is_stored = node.op_type in _PRODUCTS and node.input[1] in index.constants
        maker = index.makers.get(node.input[0]) if is_stored else None
        dynamic = maker is not None and maker.op_type == "DynamicQuantizeLinear"
        chain = _chain_behind(index, node) if dynamic else {}
        scale = _weight_scale(index, chain, maker) if maker is not None and chain else None
        if scale is None or maker is None:
            continue
        names = [f"{PREFIX}/{node.name}/{part}" for part in ("weight", "product", "scale")]
        proto.graph.initializer.append(numpy_helper.from_array(scale, names[2]))
        axis = 0 if node.op_type == "ConvInteger" else len(index.constants[node.input[1]].dims) - 1
        inputs = [node.input[1], names[2], *filter(None, [input_name(node, 3)])]
        pair = helper.make_node("DequantizeLinear", inputs, [names[0]], names[0], axis=axis)
        nodes.insert(list(nodes).index(node), pair)
        output, add = chain["Mul"].output[0], chain.get("Add")
        node.op_type = _PRODUCTS[node.op_type]
        node.input[:] = [maker.input[0], names[0]]
        node.output[0] = output if add is None else names[1]
        if add is not None:
            reshape, bias = _float_bias(index, add)
            if reshape is not None:
                reshape.input[0], bias = bias, reshape.output[0]
            add.input[:], add.output[0] = [names[1], bias], output
        nodes.remove(chain["Cast"])
        nodes.remove(chain["Mul"])


def _chain_behind(index: GraphIndex, node: onnx.NodeProto) -> dict[str, onnx.NodeProto]:
    """Return the Add of a bias, if it can be undone, the Cast and the Mul behind a product; none without."""
    chain: dict[str, onnx.NodeProto] = {}
    name = node.output[0]
    for op in ("Add", "Cast", "Mul"):
        readers = index.readers.get(name, [])
        is_alone = len(readers) == 1 and readers[0].op_type == op
        if is_alone and (op != "Add" or _float_bias(index, readers[0])[1]):
            chain[op] = readers[0]
            name = readers[0].output[0]
    return chain if {"Cast", "Mul"} <= chain.keys() else {}


def _weight_scale(
    index: GraphIndex, chain: dict[str, onnx.NodeProto], maker: onnx.NodeProto
) -> NDArray[np.generic] | None:
    """Return the scale of the weight of a product, which the scale of its data multiplies."""
    factor = next((name for name in chain["Mul"].input if name != chain["Cast"].output[0]), "")
    product = index.makers.get(factor)
    if product is None or product.op_type != "Mul" or maker.output[1] not in product.input:
        return None
    tensor = next((index.constants[name] for name in product.input if name in index.constants), None)
    return None if tensor is None else np.asarray(tensor_array(tensor)).reshape(-1)


def _float_bias(index: GraphIndex, add: onnx.NodeProto) -> tuple[onnx.NodeProto | None, str]:
    """Return the Reshape, if there is one, and the bias in float that an Add has in units of both scales.

    Older quantizers of onnxruntime write Div, Floor and Cast to int32. The name is empty without them.
    """
    for name in add.input:
        reshape, maker = None, index.makers.get(name)
        while maker is not None and maker.op_type in ("Cast", "Floor", "Reshape", "Round"):
            reshape = maker if maker.op_type == "Reshape" else reshape
            maker = index.makers.get(maker.input[0])
        if maker is not None and maker.op_type == "Div" and maker.input[0] in index.constants:
            return reshape, maker.input[0]
    return None, ""

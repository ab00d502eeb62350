"""`pairs_of_casts`: weights in integers that a Cast and a Mul make floats, as DequantizeLinear does."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import replace_nodes
from onnxfq.graph.normalize.opset import raise_opset

_OPSET = 13
"""The first opset in which DequantizeLinear has an axis."""


def pairs_of_casts(proto: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """Return the model with a DequantizeLinear for each 8-bit weight that a Cast and a Mul by its scale read.

    Tools that store weights alone in integers write them so. A model without any is returned itself.
    """
    index = GraphIndex.of_model(proto)
    found = [(node, pair) for node in proto.graph.node if (pair := _pair_of(index, node)) is not None]
    if not found:
        return proto
    pairs = {node.output[0]: pair for node, pair in found}
    products = {pair.output[0] for pair in pairs.values()}
    edited = deepcopy(proto)
    kept = [node for node in proto.graph.node if not products & {*node.output}]
    replace_nodes(edited.graph, [pairs.get("".join(node.output[:1]), node) for node in kept])
    for tensor in edited.graph.initializer:
        if tensor.name in {pair.input[1] for pair in pairs.values()}:
            values = tensor_array(tensor)
            flat = values.reshape(-1 if values.size > 1 else ())
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(flat), tensor.name))
    return raise_opset(edited, _OPSET, source)[0]


def _pair_of(index: GraphIndex, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the DequantizeLinear in place of a Cast and of the Mul behind it; None for other nodes."""
    stored = index.constants.get(node.input[0]) if node.op_type == "Cast" else None
    if stored is None or stored.data_type not in (TensorProto.INT8, TensorProto.UINT8):
        return None
    readers = index.readers.get(node.output[0], [])
    if len(readers) != 1 or readers[0].op_type != "Mul" or node.output[0] in index.outputs:
        return None
    name = next((one for one in readers[0].input if one in index.constants), "")
    scale = index.constants.get(name)
    if scale is None or scale.data_type != TensorProto.FLOAT or len(index.readers[name]) != 1:
        return None
    sizes = [1] * (len(stored.dims) - len(scale.dims)) + [*scale.dims]
    axes = [at for at, size in enumerate(sizes) if size > 1]
    if len(axes) > 1 or any(sizes[at] != stored.dims[at] for at in axes):
        return None
    output = readers[0].output[0]
    return helper.make_node("DequantizeLinear", [node.input[0], name], [output], node.name, axis=sum(axes))

"""Products in float that ONNX Runtime would round by itself.

At every level but ORT_DISABLE_ALL it gives a Conv, ConvTranspose or Gemm in float an int8 weight with one
scale and an int32 bias, if its input comes from a DequantizeLinear with one scale and its output goes to a
QuantizeLinear. Behind a DequantizeLinear with the same scale for each channel the product stays in float.

Source: `weight_bias_quantization.cc` of ONNX Runtime 1.32, which has it since 1.21.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto
from onnx.numpy_helper import to_array

from onnxfq.graph.constants import make_tensor
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, replace_nodes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import BIASED_PRODUCTS, STANDARD_DOMAINS
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, make_finding

log = logging.getLogger(__name__)

_BETWEEN = frozenset({"Relu", "Clip"})
_READ, _ROUND = "DequantizeLinear", "QuantizeLinear"


def find_rounded_products(index: GraphIndex) -> Iterator[onnx.NodeProto]:
    """Yield the products with weight and bias in float that ONNX Runtime rounds."""
    for node in index.nodes:
        if node.op_type in BIASED_PRODUCTS and node.domain in STANDARD_DOMAINS:
            constants = [index.constants.get(name) for name in node.input[1:] if name]
            is_float = all(one is not None and one.data_type == TensorProto.FLOAT for one in constants)
            if is_float and _reads_one_scale(node, index) and _is_rounded(node, index):
                yield node


def keep_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let products in float read a scale for each channel, in place; return `proto`.

    An input without an axis of two or more known numbers keeps its scale, with a warning.
    """
    index = GraphIndex.of_model(proto)
    axes = {node.name: _find_axis(node, index) for node in find_rounded_products(index)}
    for name in [name for name, (_, size) in axes.items() if size < 2]:
        log.warning("ONNX Runtime rounds the weight of node %r to int8, which should stay in float", name)
        del axes[name]
    if not axes:
        return proto
    unread = {
        node.input[0]
        for node in index.nodes
        if node.name in axes and all(reader.name in axes for reader in index.readers[node.input[0]])
    }
    unread -= index.outputs
    for graph in list_graphs(proto.graph):
        nodes = list[onnx.NodeProto]()
        for node in graph.node:
            if node.name in axes:
                nodes.append(_read_by_channel(graph, node, index, *axes[node.name]))
            nodes.append(node)
        replace_nodes(graph, [node for node in nodes if not unread.intersection(node.output)])
    return proto


def rounded_products(reading: CheckContext) -> Iterator[Finding]:
    """Warn of products whose weight is float in the file and int8 in ONNX Runtime."""
    rounded = {node.output[0] for node in find_rounded_products(GraphIndex.of_model(reading.proto))}
    for site in reading.sites:
        if rounded.intersection(site.node.output):
            message = (
                "ONNX Runtime gives its float weight int8 numbers with one scale, since pairs stand on both "
                "sides; quantize the weight, or give the DequantizeLinear of its input a scale per channel"
            )
            yield make_finding("rounded-product", "warning", site, message, site.input(1))


def _reads_one_scale(node: onnx.NodeProto, index: GraphIndex) -> bool:
    maker = index.makers.get(node.input[0])
    scale = index.constants.get(maker.input[1]) if maker is not None and maker.op_type == _READ else None
    return scale is not None and tuple(scale.dims) in ((), (1,))


def _is_rounded(node: onnx.NodeProto, index: GraphIndex) -> bool:
    """Tell whether a QuantizeLinear alone reads the output, maybe behind a Relu or Clip."""
    while node.output[0] not in index.outputs:
        readers = index.readers.get(node.output[0], [])
        if len(readers) != 1 or readers[0].op_type not in _BETWEEN:
            return len(readers) == 1 and readers[0].op_type == _ROUND
        node = readers[0]
    return False


def _read_by_channel(
    graph: onnx.GraphProto, node: onnx.NodeProto, index: GraphIndex, axis: int, size: int
) -> onnx.NodeProto:
    """Return a DequantizeLinear of the input of `node` with `size` equal scales, which `node` then reads."""
    given = node.input[0]
    reader, name = index.makers[given], index.names.claim(f"{given}/{node.name}")
    read = onnx.helper.make_node(_READ, list(reader.input), [name], name, domain=reader.domain, axis=axis)
    for slot, one in enumerate(reader.input[1:], 1):
        values = np.full(size, to_array(index.constants[one]).reshape(()))
        graph.initializer.append(make_tensor(index.names.claim(f"{name}/{slot}"), values))
        read.input[slot] = graph.initializer[-1].name
    node.input[0] = name
    return read


def _find_axis(node: onnx.NodeProto, index: GraphIndex) -> tuple[int, int]:
    """Return an axis of the input of `node` and its size, the channels if they are several."""
    attrs, weight = attributes_of(node), index.constants[node.input[1]].dims
    if node.op_type == "Gemm":
        sizes = {0 if attrs.get("transA") else 1: weight[1 if attrs.get("transB") else 0]}
    else:
        sizes = {1: weight[0] if node.op_type == "ConvTranspose" else weight[1] * attrs.get("group", 1)}
    shape = index.shape(node.input[0]) or ()
    sizes |= {axis: size for axis, size in enumerate(shape) if size is not None and axis not in sizes}
    return next(((axis, size) for axis, size in sizes.items() if size > 1), (0, 1))

"""Removal of existing quantizers, so that a model can be quantized again."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, ONNX_QUANTIZERS, QUANTIZED_OPS
from onnxfq.numerics.affine import dequantize
from onnxfq.numerics.granularity import PER_TENSOR, Granularity


def strip_quantizers(proto: onnx.ModelProto, source: str) -> str:
    """Remove Q/DQ pairs and fake-quant nodes from a normalised model, in place; return a note.

    The input of a pair replaces it; real numbers replace a stored integer weight. Raises ModelError for a
    quantizer that is not part of a pair, such as QLinearConv or an integer operator between Q and DQ.
    """
    index = GraphIndex.of_model(proto)
    makers, constants = index.makers, index.constants
    count = 0
    for graph in list_graphs(proto.graph):
        for node in graph.node:
            if node.op_type == "DequantizeLinear":
                producer = makers.get(node.input[0])
                if producer is not None and producer.op_type in ONNX_QUANTIZERS:
                    _stand_aside(node, producer.input[0])
                elif all(name in constants for name in node.input):
                    _store_numbers(proto, node, constants)
                else:
                    raise _make_pair_error(node, source)
                count += 1
            elif node.op_type in FAKE_QUANTIZE_OPS:
                _stand_aside(node, node.input[0])
                count += 1
    _remove_unread(proto)
    left = [node for node in list_nodes(proto.graph) if node.op_type in QUANTIZED_OPS]
    if left:
        raise _make_pair_error(left[0], source)
    return f"{count} quantizer(s) taken out; weights keep the rounding they have" if count else ""


def _make_pair_error(node: onnx.NodeProto, source: str) -> ModelError:
    return ModelError(
        f"{source}: {node.op_type} {node.name!r} is not part of a Q/DQ pair and cannot be removed; give the "
        "float model, or --keep-existing"
    )


def _stand_aside(node: onnx.NodeProto, reads: str) -> None:
    """Make `node` an Identity: runtimes remove it, and every name stays."""
    named = helper.make_node("Identity", [reads], [node.output[0]], name=node.name)
    node.CopyFrom(named)


def _store_numbers(
    proto: onnx.ModelProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
) -> None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    codes, scale = (tensor_array(constants[name]) for name in node.input[:2])
    offset = tensor_array(constants[node.input[2]]) if len(node.input) > 2 else np.zeros(())
    granularity = Granularity.of(attributes.get("axis", 1), attributes.get("block_size"))
    numbers = dequantize(
        codes, scale, np.asarray(offset, np.float32), granularity=granularity if scale.ndim else PER_TENSOR
    ).astype(scale.dtype)
    name = f"{node.output[0]}/numbers"
    proto.graph.initializer.append(numpy_helper.from_array(numbers, name))
    _stand_aside(node, name)


def _remove_unread(proto: onnx.ModelProto) -> None:
    """Remove quantizers and constants that have no reader."""
    used = GraphIndex.of_model(proto).used
    for graph in list_graphs(proto.graph):
        for number in reversed(range(len(graph.node))):
            node = graph.node[number]
            if node.op_type in ONNX_QUANTIZERS and used.isdisjoint(node.output):
                del graph.node[number]
    used = GraphIndex.of_model(proto).used
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in used]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)

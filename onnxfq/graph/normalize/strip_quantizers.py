"""Models that are quantized already: their quantizers taken out, so that they can be quantized anew."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.io.external_tensors import tensor_array
from onnxfq.graph.model import all_graphs, all_nodes
from onnxfq.graph.ops import QUANTIZED_OPS
from onnxfq.numerics.affine import dequantize

_ROUNDED = ("FakeQuantize", "DynamicFakeQuantize")
_TO_INTEGERS = ("QuantizeLinear", "DynamicQuantizeLinear")


def strip_quantizers(proto: onnx.ModelProto, source: str) -> str:
    """Take Q/DQ pairs and fake-quant nodes out of a normalised model, in place; return a note.

    A pair gives way to what it reads, a stored integer weight to the numbers that it stands for. Raises
    ModelError for a quantizer that is no pair, as QLinearConv or an integer operator between Q and DQ.
    """
    made = {name: node for node in all_nodes(proto.graph) for name in node.output}
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    count = 0
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            if node.op_type == "DequantizeLinear":
                producer = made.get(node.input[0])
                if producer is not None and producer.op_type in _TO_INTEGERS:
                    _stand_aside(node, producer.input[0])
                elif node.input[0] in constants:
                    _store_numbers(proto, node, constants)
                else:
                    raise _no_pair(node, source)
                count += 1
            elif node.op_type in _ROUNDED:
                _stand_aside(node, node.input[0])
                count += 1
    _remove_unread(proto)
    left = [node for node in all_nodes(proto.graph) if node.op_type in QUANTIZED_OPS]
    if left:
        raise _no_pair(left[0], source)
    return f"{count} quantizer(s) taken out; weights keep the rounding they have" if count else ""


def _no_pair(node: onnx.NodeProto, source: str) -> ModelError:
    return ModelError(
        f"{source}: {node.op_type} {node.name!r} is no part of a Q/DQ pair and cannot be taken out; give the "
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
    numbers = dequantize(
        codes,
        scale,
        np.asarray(offset, np.float32),
        axis=attributes.get("axis", 1) if scale.ndim else None,
        block_size=attributes.get("block_size") or None,
    ).astype(scale.dtype)
    name = f"{node.output[0]}/numbers"
    proto.graph.initializer.append(numpy_helper.from_array(numbers, name))
    _stand_aside(node, name)


def _remove_unread(proto: onnx.ModelProto) -> None:
    """Remove quantizers and constants that nothing reads any more."""
    read = {name for node in all_nodes(proto.graph) for name in node.input}
    read |= {value.name for graph in all_graphs(proto.graph) for value in graph.output}
    for graph in all_graphs(proto.graph):
        for number in reversed(range(len(graph.node))):
            node = graph.node[number]
            if node.op_type in _TO_INTEGERS and read.isdisjoint(node.output):
                del graph.node[number]
    read = {name for node in all_nodes(proto.graph) for name in node.input}
    read |= {value.name for graph in all_graphs(proto.graph) for value in graph.output}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)

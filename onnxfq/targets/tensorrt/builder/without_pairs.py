"""`without_pairs`: the graph of a Q/DQ model in its float types, to build for comparison.

Its weights have the right shapes and types, and numbers near the true ones: what a builder fuses does not
depend on them. Pairs around operators on integers stay.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.model import list_graphs, replace_nodes
from onnxfq.graph.prune import remove_unread
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.quantizer_reader import DYNAMIC_OPS, QUANTIZE_OPS, Quantizer

_STEP = np.float32(2.0**-6)
"""Stands for every scale of a weight."""


def without_pairs(reading: CheckContext) -> onnx.ModelProto:
    """Return a copy of the model that `reading` holds, without pairs."""
    proto = deepcopy(reading.proto)
    stand_ins = {q.site.name: node for q in reading.quantizers if (node := _stand_in(q, proto)) is not None}
    for graph in list_graphs(proto.graph):
        replace_nodes(graph, [stand_ins.get(node.name or node.output[0], node) for node in graph.node])
        graph.ClearField("value_info")  # TensorRT finds all types itself
    remove_unread(proto, list_graphs(proto.graph), _is_of_pair)
    return proto


def _is_of_pair(node: onnx.NodeProto) -> bool:
    return node.op_type in QUANTIZE_OPS or node.op_type in DYNAMIC_OPS


def _stand_in(q: Quantizer, proto: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the node in place of a DequantizeLinear; None for a Q, and for a DQ behind other integers."""
    output, index = q.site.outputs[0].name, q.site.index
    kind = q.float_type or TensorProto.FLOAT
    if q.quantizes:
        return None
    stored = index.stored.get(q.data)
    if stored is not None:
        numbers = np.asarray(tensor_array(stored)).astype(np.float32) * _STEP
        name = f"{output}/numbers"
        values = numbers.astype(helper.tensor_dtype_to_np_dtype(kind))
        proto.graph.initializer.append(make_tensor(name, values))
        return helper.make_node("Identity", [name], [output], q.site.name)
    maker = index.maker(q.data)
    if maker is not None and maker.op == "Clip":  # a narrow integer
        maker = index.maker(maker.input(0))
    if maker is not None and maker.op not in QUANTIZE_OPS and maker.op not in DYNAMIC_OPS:
        return None
    # A Q may read another float type than its DQ gives; without a maker the model takes integers.
    given = q.data if maker is None else maker.input(0)
    return helper.make_node("Cast", [given], [output], q.site.name, to=kind)

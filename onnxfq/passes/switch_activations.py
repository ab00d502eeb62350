"""A switch for all activations of a fake-quant model whose weights are rounded already."""

from __future__ import annotations

import onnx
from onnx import helper

from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT

_SLOTS = {"FakeQuantize": 3, "DynamicFakeQuantize": 2}
"""Position of the input `enabled` by operator."""


def switch_activations(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy of `proto` whose FakeQuantize nodes read ENABLED_INPUT; None without such nodes.

    The input is optional: by default the copy computes what `proto` does, to the bit.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    found = [node for node in list_nodes(made.graph) if node.op_type in FAKE_QUANTIZE_OPS]
    if not found:
        return None
    for node in found:
        node.input.extend([""] * (_SLOTS[node.op_type] - len(node.input)))
        node.input.append(ENABLED_INPUT)
    made.graph.input.append(helper.make_tensor_value_info(ENABLED_INPUT, onnx.TensorProto.BOOL, []))
    made.graph.initializer.append(helper.make_tensor(ENABLED_INPUT, onnx.TensorProto.BOOL, [], [True]))
    return made

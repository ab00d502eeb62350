"""Switches in fake-quant models: one for all activations, or one for each rounded weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from onnxfq.graph.index import GraphIndex
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


def switch_weights(
    proto: onnx.ModelProto, rounded: Mapping[str, onnx.TensorProto], switched: Sequence[str]
) -> onnx.ModelProto:
    """Return `proto` whose FakeQuantize nodes read a rounded weight where its switch is on.

    Args:
        proto: with float weights and `switches="each"`.
        rounded: weights on their grids by name.
        switched: the tensors in the order of the switches.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    taken = GraphIndex(graph).names
    picks = [node for node in graph.node if node.op_type == "Gather" and node.input[0] == ENABLED_INPUT]
    states = dict(zip(switched, (node.output[0] for node in picks), strict=True))
    chosen: dict[str, str] = {}
    for name in (tensor for tensor in switched if tensor in rounded):
        values = graph.initializer.add()
        values.CopyFrom(rounded[name])
        values.name, chosen[name] = taken.claim(f"{name}/rounded"), taken.claim(f"{name}/chosen")
        inputs = [states[name], values.name, name]
        graph.node.insert(len(picks), helper.make_node("Where", inputs, [chosen[name]], chosen[name]))
    for node in graph.node:
        if node.op_type == "FakeQuantize" and node.input[0] in chosen:
            node.input[0] = chosen[node.input[0]]
    return made

"""Depthwise convolutions, left in float if a recipe asks for it.

TensorRT for RTX 1.7.1 pads every group of an int8 convolution to four channels: the input of a depthwise one
is written four times as large. The layers of an engine move these bytes, in int8 and then with depthwise in
half: GhostNet writes 5.7 and 3.9 MB and reads 12.7 and 9.3 MB; RepViT gains nothing and gets 23 layers more.
Bytes are a proxy, and only a GPU shows the time. Therefore int8 recipes quantize depthwise convolutions. In
float8 such a convolution also costs accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from onnxfq.placement.node_decision import NodeDecision

WHY_FLOAT = (
    "a depthwise convolution, which sums over no channels; to quantize it, set depthwise: quantize in the "
    "recipe"
)
"""Reason for float."""


def is_depthwise(node: gs.Node) -> bool:
    """Tell whether `node` is a convolution with constant weights whose groups read one channel each."""
    if node.op != "Conv" or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = node.inputs[1].shape
    return len(shape) > 2 and shape[1] == 1 and node.attrs.get("group", 1) > 1


def leave_out_depthwise(decisions: list[NodeDecision], nodes: Iterable[gs.Node]) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for depthwise convolutions."""
    found = {node.name for node in nodes if is_depthwise(node)}
    return [
        decision.leave_out("depthwise", WHY_FLOAT)
        if decision.node in found and decision.placements
        else decision
        for decision in decisions
    ]

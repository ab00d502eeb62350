"""Operators that multiply no weights and get pairs for OpenVINO: residual sums, gates, means, poolings.

Found by the kernels that OpenVINO 2026.4.1 chooses on a CPU. A convolution whose result has a pair writes 8
bits. Without one it writes float, and a Reorder or a FakeQuantize reads that again. A Sigmoid that gates its
own input fuses into the convolution before it, so its product gets no pair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.graph.constant_integers import evaluate_integers
from onnxfq.graph.ops import is_weighted
from onnxfq.placement.left_out import is_depthwise
from onnxfq.placement.residual_adds import residual_skip
from onnxfq.placement.target_policy import NodeDecision, Slots

OPERATORS: Mapping[str, Slots] = {
    **dict.fromkeys(("Add", "Mul"), Slots(inputs=(0, 1))),
    **dict.fromkeys(("GlobalAveragePool", "MaxPool", "ReduceMean"), Slots(inputs=(0,))),
}
"""Operator -> inputs that get a pair, where `choose_operators` keeps it."""

# Operators that OpenVINO fuses into the convolution before them, by their first computed input.
_FUSED = frozenset({"Add", "BatchNormalization", "Clip", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Swish"})


def choose_operators(decisions: Iterable[NodeDecision], nodes: Collection[gs.Node]) -> list[NodeDecision]:
    """Return `decisions` without those on sums, products and means that gain nothing from pairs.

    A sum keeps its pairs as `residual_skip` says, a gate if it scales channels of a quantized convolution, a
    mean if it goes over all positions of one, and a MaxPool between them if only quantized nodes read it.
    """
    by_name = {node.name: node for node in nodes}
    products = {d.node for d in decisions if d.placements and is_weighted(by_name[d.node])}
    decided = [_choose(decision, by_name[decision.node], products) for decision in decisions]
    chosen = [decision for decision in decided if decision is not None]
    low = {decision.node for decision in chosen if decision.placements}
    return [d for d in chosen if d.op_type != "MaxPool" or _is_read_by(by_name[d.node].outputs[0], low)]


def takes_channel_scales(node: gs.Node) -> bool:
    """Tell whether OpenVINO multiplies in 8 bits for `node` with a scale and a zero point for each channel.

    Depthwise convolutions take them along axis 1. With several outputs of a channel OpenVINO takes the zero
    points of other channels, and in three dimensions it multiplies in float.
    """
    kernel = node.inputs[1] if is_depthwise(node) else None
    return kernel is not None and len(kernel.shape) <= 4 and bool(kernel.shape[0] == node.attrs["group"])


def _choose(decision: NodeDecision, node: gs.Node, products: set[str]) -> NodeDecision | None:
    """Return the decision on one node; None for nodes without a gain."""
    if node.op not in OPERATORS or is_weighted(node):
        return decision
    if node.op == "Add":
        skip = residual_skip(node, products)
        if skip is None or not skip.why_float:
            return None if skip is None else decision
        return replace(decision, placements=(), why_float=skip.why_float, by_rule=True)
    wide = _find_gated(node) if node.op == "Mul" else node.inputs[0]
    if wide is None or (node.op == "ReduceMean" and not _goes_over_positions(node)):
        return None
    return None if find_product(wide, products) is None else decision


def _find_gated(mul: gs.Node) -> gs.Tensor | None:
    """Return the input whose channels `mul` scales as a gate; None if it does something else."""
    sides = list(mul.inputs)
    if any(isinstance(side, gs.Constant) or side.shape is None or len(side.shape) < 4 for side in sides):
        return None
    narrow = [all(size == 1 for size in side.shape[2:]) for side in sides]
    if narrow[0] == narrow[1]:
        return None
    return sides[0] if narrow[1] else sides[1]


def _goes_over_positions(mean: gs.Node) -> bool:
    """Tell whether a ReduceMean goes over all axes of an image but samples and channels."""
    shape = mean.inputs[0].shape
    axes = mean.attrs.get("axes") if len(mean.inputs) < 2 else evaluate_integers(mean.inputs[1])
    if shape is None or len(shape) < 4 or axes is None:
        return False
    return sorted(axis % len(shape) for axis in axes if axis is not None) == list(range(2, len(shape)))


def _is_read_by(tensor: gs.Tensor, names: Collection[str]) -> bool:
    """Tell whether nodes of `names`, and nothing else, read `tensor`."""
    return bool(tensor.outputs) and all(reader.name in names for reader in tensor.outputs)


def find_product(tensor: gs.Tensor, products: Collection[str]) -> gs.Node | None:
    """Return the node of `products` that OpenVINO computes `tensor` with; None if another layer does."""
    while tensor.inputs:
        node = tensor.inputs[0]
        if node.name in products:
            return node
        if node.op not in _FUSED and not _gates_itself(node):
            return None
        tensor = node.inputs[0]
    return None


def _gates_itself(node: gs.Node) -> bool:
    """Tell whether `node` is the product of a SiLU: a tensor by its own Sigmoid."""
    if node.op != "Mul":
        return False
    first, second = node.inputs
    return any(
        bool(gate.inputs)
        and gate.inputs[0].op in ("HardSigmoid", "Sigmoid")
        and gate.inputs[0].inputs[0] is data
        for data, gate in ((first, second), (second, first))
    )

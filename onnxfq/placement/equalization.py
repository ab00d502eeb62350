"""Equalizing the channels of what depthwise convolutions read: which activations can have it.

A depthwise convolution never adds two channels, so a channel of its input may have any scale of its own as
long as its weights take it up, and those have a scale for each channel on every target. So one scale of the
activation, which targets want, is no loss: a Mul by powers of two in front of the pair gives every channel
the whole grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.slots import Use
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.spec import QuantSpec

_NOTE = ", equalized: its channels have scales that are powers of two apart"


def is_depthwise(node: gs.Node) -> bool:
    """Tell whether `node` is a convolution with constant weights whose groups read one channel each."""
    if node.op != "Conv" or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = node.inputs[1].shape
    return len(shape) > 2 and shape[1] == 1 and node.attrs.get("group", 1) > 1


def equalize_depthwise(placements: Sequence[Placement], graph: gs.Graph, recipe: Recipe) -> list[Placement]:
    """Return `placements` with those equalized that can be and whose recipe asks for it.

    That is a float32 activation of the main graph with one static scale, a known number of channels and no
    quantized reader but depthwise convolutions, each with a weight of its own with a scale a channel.
    """
    nodes = {node.name: node for node in graph.nodes}
    weights = {use: p for p in placements if p.role == "weight" for use in p.uses}
    return [_equalized(p) if _can(p, nodes, weights, recipe) else p for p in placements]


def _equalized(placement: Placement) -> Placement:
    # Whatever the calibrator of the recipe: each channel keeps its whole range.
    spec = placement.spec.model_copy(update={"granularity": Granularity(1), "equalized": True})
    return placement.model_copy(update={"spec": spec, "calibrator": MINMAX, "why": placement.why + _NOTE})


def _can(
    placement: Placement, nodes: dict[str, gs.Node], weights: dict[Use, Placement], recipe: Recipe
) -> bool:
    spec: QuantSpec = placement.spec
    if placement.role != "activation" or placement.float_type != "float32" or placement.calibrator.is_fixed:
        return False
    if spec.dynamic or spec.scale_type != "float32" or spec.granularity != PER_TENSOR:
        return False
    return all(_reads_channels(use, placement.tensor, nodes, weights, recipe) for use in placement.uses)


def _reads_channels(
    use: Use, tensor: str, nodes: dict[str, gs.Node], weights: dict[Use, Placement], recipe: Recipe
) -> bool:
    """Tell whether `use` is a depthwise convolution whose weight can take up the factors of the channels."""
    node = nodes.get(use.node)
    if node is None or use.input != 0 or not is_depthwise(node):
        return False
    scheme = recipe.activation_for(node.name, node.op, tensor)
    weight = weights.get(Use(node.name, 1))
    if scheme is None or scheme.equalize != "depthwise" or weight is None:
        return False
    shape = node.inputs[0].shape
    channels = node.attrs["group"]
    return (
        shape is not None
        and len(shape) == len(node.inputs[1].shape)
        and shape[1] == channels
        and weight.uses == (Use(node.name, 1),)
        and weight.spec.granularity == Granularity(0)
        and weight.spec.scale_type == "float32"
        and weight.float_type == "float32"
    )

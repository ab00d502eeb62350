"""Placement of constant biases: integers at the input scale times the weight scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.names import Use
from onnxfq.graph.ops import channel_axis
from onnxfq.graph.queries import float_type, nodes_by_graph
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.target_policy import TargetPolicy

_BIASED = ("Conv", "ConvTranspose", "Gemm")
_SLOT = 2


def place_biases(
    placements: Sequence[Placement], graph: gs.Graph, recipe: Recipe, policy: TargetPolicy
) -> Iterator[Placement]:
    """Yield a placement of each bias that can have the scale of its products, if the policy has a bias type.

    Such a bias is a float32 constant [channels] with one reader. Its node has an input with one static scale,
    and a weight with one scale or one per output channel.
    """
    placed = {use: placement for placement in placements for use in placement.uses}
    for node in nodes_by_graph(graph) if policy.bias_qtype else ():
        if node.op not in _BIASED or len(node.inputs) <= _SLOT:
            continue
        bias, known = node.inputs[_SLOT], [placed.get(Use(node.name, slot)) for slot in (0, 1)]
        data, weight = known
        if data is None or weight is None or not _has_one_scale(data) or not _is_plain(node, bias):
            continue
        axis = _axis_of(node, weight)
        if axis is None or recipe.keeps_float(node.name, node.op, bias.name):
            continue
        yield Placement(
            tensor=bias.name,
            role="bias",
            spec=QuantSpec(qtype=policy.bias_qtype, granularity=Granularity(0 if axis else None)),
            uses=(Use(node.name, _SLOT),),
            why=f"bias of {node.op}, at the scale of {data.tensor!r} times the scale of {weight.tensor!r}",
        )


def _has_one_scale(placement: Placement) -> bool:
    spec = placement.spec
    static = not spec.dynamic and spec.scale_type == "float32"
    return placement.role == "activation" and static and spec.granularity == PER_TENSOR


def _is_plain(node: gs.Node, bias: gs.Tensor) -> bool:
    """Tell whether `bias` is a constant with one reader, added unscaled."""
    if not isinstance(bias, gs.Constant) or float_type(bias) != "float32" or len(bias.shape) != 1:
        return False
    factors = (node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0))
    return len(bias.outputs) == 1 and factors == (1.0, 1.0)


def _axis_of(node: gs.Node, weight: Placement) -> bool | None:
    """Tell whether `weight` has one scale per channel instead of a single one; None for other scales."""
    granularity, shape = weight.spec.granularity, node.inputs[1].shape
    if weight.role != "weight" or weight.spec.scale_type != "float32" or shape is None:
        return None
    if granularity == PER_TENSOR:
        return False
    axis = channel_axis(node, 1, len(shape))
    fits = (
        axis is not None and granularity == Granularity(axis) and shape[axis] == node.inputs[_SLOT].shape[0]
    )
    return True if fits else None

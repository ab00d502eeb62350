"""`TargetPolicy`: what a target takes and wants, as data and small functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement


@dataclass(frozen=True)
class Operands:
    """The placed inputs of one node, and the shapes of those that are constants.

    weight_shapes: by tensor name.
    """

    node: gs.Node
    placements: Sequence[Placement]
    weight_shapes: dict[str, tuple[int, ...]]

    def shape(self, placement: Placement) -> Sequence[int | str] | None:
        """Return the shape of a placed tensor; a name for an open dimension, None when it is not known."""
        if placement.tensor in self.weight_shapes:
            return self.weight_shapes[placement.tensor]
        found: Sequence[int | str] | None = next(
            t.shape for t in self.node.inputs if t.name == placement.tensor
        )
        return found

    @property
    def weight_only(self) -> bool:
        """Tell whether no activation of the node is quantized."""
        return all(placement.role == "weight" for placement in self.placements)


@dataclass(frozen=True)
class TargetPolicy:
    """Placement choices of one target.

    per_tensor_weights: op type -> why its weights get one scale only. residual: whether the skip
    branch of a residual Add gets a pair. channel_blocks: whether blocks of a convolution go along its input
    channels; else it has a scale for each output channel. bias: why biases stay float. refuses: returns why
    the target cannot take one of a node's placements, given all of them, with the remedy; an empty string
    when it can.
    keeps_float: returns why the target would run this one node in float for all that; empty when not.
    fused_attention: whether both products of an attention are quantized or neither.
    """

    name: str
    per_tensor_weights: dict[str, str]
    residual: bool
    channel_blocks: bool
    bias: str
    refuses: Callable[[Placement, Operands], str]
    keeps_float: Callable[[Operands], str]
    fused_attention: bool = False

"""`TargetPolicy`: what a target takes and wants, as data and small functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.placement.decision import NodeDecision


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
            t.shape for t in (*self.node.inputs, *self.node.outputs) if t.name == placement.tensor
        )
        return found

    @property
    def weight_only(self) -> bool:
        """Tell whether no activation of the node is quantized."""
        return all(placement.role == "weight" for placement in self.placements)


@dataclass(frozen=True)
class Slots:
    """Inputs and outputs of an operator that get a pair beside the inputs it multiplies, by position.

    Outputs get one where the recipe has one static scale for an activation.
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


def _take_all(placement: Placement, operands: Operands) -> str:
    return ""


def _keep_none(operands: Operands) -> str:
    return ""


def _keep_decisions(decisions: list[NodeDecision], nodes: Collection[gs.Node]) -> list[NodeDecision]:
    return decisions


NodesRule = Callable[[list[NodeDecision], Collection[gs.Node]], list[NodeDecision]]
"""Takes all decisions and the nodes of the graph, and returns the decisions with those it changes."""

PairsRule = Callable[
    [list[NodeDecision], Collection[gs.Node], Recipe, "TargetPolicy", Collection[str]], list[NodeDecision]
]
"""The same with the recipe, the policy, and the names of tensors that some reader wants in float."""


@dataclass(frozen=True)
class TargetPolicy:
    """Placement choices of one target.

    per_tensor_weights: op type -> why its weights get one scale only. residual: whether the skip
    branch of a residual Add gets a pair. channel_blocks: whether blocks of a convolution go along its input
    channels; else it has a scale for each output channel. bias: why biases stay float, those that
    bias_qtype does not quantize. refuses: returns why the target cannot take one of a node's placements,
    given all of them, with the remedy; an empty string when it can.
    keeps_float: returns why the target would run this one node in float for all that; empty when not.
    whole_attention: why the target wants both products of an attention quantized or neither; empty where it
    takes either. weigh: changes decisions by rules over several nodes. join: the last of them, which may
    replace several pairs by one.
    operators: op type -> what is placed of it beside weights and the inputs that are multiplied. bias_qtype:
    number format of constant biases, at the scale of the input times that of the weight; empty for float.
    """

    per_tensor_weights: Mapping[str, str] = field(default_factory=dict)
    residual: bool = False
    channel_blocks: bool = False
    bias: str = "bias: added in float"
    refuses: Callable[[Placement, Operands], str] = _take_all
    keeps_float: Callable[[Operands], str] = _keep_none
    whole_attention: str = ""
    weigh: NodesRule = _keep_decisions
    join: PairsRule | None = None
    operators: Mapping[str, Slots] = field(default_factory=dict)
    bias_qtype: str = ""

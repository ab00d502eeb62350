"""`TargetPolicy`: capabilities and preferences of a target, and what it decides for a node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.names import Use
from onnxfq.numerics.qtypes import QType
from onnxfq.support.reasons import Reason


@dataclass(frozen=True)
class NodeDecision:
    """Decision for one node: placements for all its needs, or a reason to leave it in float.

    Attributes:
        by_rule: the target wants this node in float, so it does not count in the coverage.
    """

    node: str
    op_type: str
    needs: tuple[Use, ...]
    placements: tuple[Placement, ...] = ()
    why_float: str = ""
    by_rule: bool = False

    def leave_out(self, rule: str, why: str, by_rule: bool = False) -> NodeDecision:
        """Return the decision that leaves the node in float, with the reason and the code of its rule."""
        return replace(self, placements=(), why_float=Reason(rule, why), by_rule=by_rule or self.by_rule)

    def with_note(self, note: str) -> NodeDecision:
        """Return the decision with `note` behind the reason of each placement."""
        noted = (p.model_copy(update={"why": f"{p.why}; {note}"}) for p in self.placements)
        return replace(self, placements=tuple(noted))


@dataclass(frozen=True)
class Operands:
    """Placed inputs of one node, and the shapes of its constant inputs.

    Attributes:
        weight_shapes: shapes by tensor name.
    """

    node: gs.Node
    placements: Sequence[Placement]
    weight_shapes: dict[str, tuple[int, ...]]

    def shape(self, placement: Placement) -> Sequence[int | str] | None:
        """Return the shape of a placed tensor, with names for open dimensions; None if unknown."""
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
    """Positions of inputs and outputs that get a pair in addition to the multiplied inputs.

    Outputs get one if the recipe has one static scale for an activation.

    Attributes:
        inputs: positions, or "all".
        outputs: positions, or "all".
        weights: inputs whose constants have the format of weights and one scale; others have that of
            activations.
        gains: inputs whose constants have that of activations, but in `uint8`.
        between_units: whether a node gets pairs only between node units, see `node_units`.
    """

    inputs: tuple[int, ...] | Literal["all"] = ()
    outputs: tuple[int, ...] | Literal["all"] = ()
    weights: tuple[int, ...] = ()
    gains: tuple[int, ...] = ()
    between_units: bool = False


NodesRule = Callable[[list[NodeDecision], Collection[gs.Node], Recipe], list[NodeDecision]]
"""Takes all decisions, the nodes of the graph and the recipe; returns the decisions with its changes."""

PairsRule = Callable[
    [list[NodeDecision], Collection[gs.Node], Recipe, "TargetPolicy", Collection[str]], list[NodeDecision]
]
"""Takes also the policy, and the names of tensors that some reader wants in float."""


@dataclass(frozen=True)
class TargetPolicy:
    """Placement choices of one target.

    Attributes:
        per_tensor_weights: op type -> why its weights get one scale only.
        one_scale_stacks: why a MatMul's weight of more than two axes gets one scale only, beside an input of
            8 bits.
        conv_transpose: why ConvTranspose stays in float, unless the recipe quantizes it; empty if the target
            quantizes it in any case.
        residual: whether the skip branch of a residual Add gets a pair.
        channel_blocks: whether blocks of a convolution go along its input channels; otherwise it has a scale
            for each output channel.
        bias: why biases stay float, unless bias_qtype quantizes them.
        refuses: returns why the target cannot take one of a node's placements, given all of them, with the
            remedy; an empty string if it can.
        keeps_float: returns why the target would run this node in float despite its pairs; otherwise an
            empty string.
        whole_attention: why the target wants both products of an attention quantized or neither; empty if it
            takes either.
        revise: changes decisions by rules over several nodes.
        join: the last such rule, which may replace several pairs by one.
        bridges: tells whether an operator that multiplies nothing runs in low precision between pairs of a
            format.
        counts_bridges: whether a check of the target counts such operators.
        operators: op type -> slots that are placed in addition to weights and multiplied inputs.
        runs_in_integers: tells whether an operator on placed operands has one kernel with a pair behind it;
            without one, neither outputs nor nodes between units get pairs.
        absorbed: operators that vanish in front of a pair whose range does their work, so that the pair of an
            output stands behind them.
        equalizes: whether a Mul that equalizes channels may stand in front of a pair; it would separate an
            operator from the pair that it is fused with.
        channel_scales: tells whether an operator that computes every channel of its first input apart takes
            a scale for each.
        one_scale: tells whether the results of an operator need the scale of its first input, whatever that
            costs.
        bias_qtype: number format of constant biases, at the input scale times the weight scale; empty for
            float.
    """

    per_tensor_weights: Mapping[str, str] = field(default_factory=dict)
    one_scale_stacks: str = ""
    conv_transpose: str = ""
    residual: bool = False
    channel_blocks: bool = False
    bias: str = "bias: added in float"
    refuses: Callable[[Placement, Operands], str] = lambda placement, operands: ""
    keeps_float: Callable[[Operands], str] = lambda operands: ""
    whole_attention: str = ""
    revise: NodesRule = lambda decisions, nodes, recipe: decisions
    join: PairsRule | None = None
    bridges: Callable[[gs.Node, QType], bool] = lambda node, qtype: False
    counts_bridges: bool = False
    operators: Mapping[str, Slots] = field(default_factory=dict)
    runs_in_integers: Callable[[Sequence[Placement]], bool] = lambda placements: True
    absorbed: frozenset[str] = frozenset()
    equalizes: bool = True
    channel_scales: Callable[[gs.Node], bool] = lambda node: False
    one_scale: Callable[[gs.Node], bool] = lambda node: False
    bias_qtype: str = ""

"""Placement on operators that a target's policy lists, and on constant biases of weighted ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import NEAREST
from onnxfq.documents.schemes import ActivationScheme
from onnxfq.graph.constants import constant_array
from onnxfq.graph.names import Use
from onnxfq.graph.ops import BIASED_PRODUCTS, STANDARD_DOMAINS, channel_axis
from onnxfq.graph.patterns.whole_numbers import WholeNumbers
from onnxfq.graph.queries import float_type, is_dequantized, nodes_by_graph, nodes_out_of_reach, weight_source
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.channel_scales import has_one_scale
from onnxfq.placement.left_out import leave_out_fixed, leave_out_log_spectra
from onnxfq.placement.node_units import find_chain_nodes, find_written
from onnxfq.placement.target_policy import NodeDecision, Operands, Slots, TargetPolicy
from onnxfq.placement.weighted_ops import activation_placement, list_numbers, place_input, refuse
from onnxfq.support.reasons import Reason


def decide_operators(
    graph: gs.Graph, weighted: list[NodeDecision], recipe: Recipe, policy: TargetPolicy, whole: WholeNumbers
) -> list[NodeDecision]:
    """Add the placements of operators that the policy lists to `weighted`.

    Args:
        graph: the model, bodies included.
        weighted: decisions on weighted operators; float decisions do not change.
        recipe: formats, and overrides by node, operator and tensor.
        policy: slots to place, by operator.
        whole: what computes whole numbers, which get no pairs.

    Returns the decisions on weighted operators in their order, then one for every other listed node, as the
    policy revises them. Raises RecipeError for placements that the target cannot take.
    """
    if not policy.operators:
        return weighted
    found, beyond = {decision.node: decision for decision in weighted}, nodes_out_of_reach(graph)
    units = find_chain_nodes(graph, weighted, recipe, policy)
    for node in nodes_by_graph(graph):
        slots = policy.operators.get(node.op)
        known = found.get(node.name) or NodeDecision(node.name, node.op, ())
        if slots is None or known.why_float or node.name in beyond or node.domain not in STANDARD_DOMAINS:
            continue
        if slots.between_units and node.name not in units:
            continue
        if known.placements and not policy.runs_in_integers(known.placements):
            continue
        if why := whole.explain(node.name):
            found[node.name] = known.leave_out("whole-numbers", why, by_rule=True)
            continue
        made = _placements(node, slots, graph, recipe, policy)
        placements = tuple(one for one in made if one.tensor not in whole.tensors)
        if placements:
            found[node.name] = _decide(node, known, placements, recipe, policy)
    nodes = nodes_by_graph(graph)
    decisions = leave_out_fixed(list(found.values()), nodes)
    if recipe.log_spectra == "float":
        decisions = leave_out_log_spectra(decisions, graph, policy)
    return policy.revise(decisions, nodes, recipe)


def _decide(
    node: gs.Node,
    known: NodeDecision,
    placements: tuple[Placement, ...],
    recipe: Recipe,
    policy: TargetPolicy,
) -> NodeDecision:
    needs = tuple(dict.fromkeys((*known.needs, *(use for p in placements for use in p.uses))))
    whys = (recipe.explain_float(node.name, node.op, placement.tensor) for placement in placements)
    kept_by = next(filter(None, whys), None)
    if kept_by is not None:
        return known if known.placements else replace(known, needs=needs, why_float=kept_by)
    sources = [weight_source(node, slot) for slot in range(len(node.inputs))]
    shapes = {one.tensor.name: tuple(one.tensor.shape) for one in sources if one is not None}
    operands = Operands(node, placements, shapes)
    refuse(operands, policy)
    why = Reason("target", "" if known.placements else policy.keeps_float(operands))
    if why:
        return replace(known, needs=needs, why_float=why)
    return replace(known, needs=needs, placements=(*known.placements, *placements))


def _placements(
    node: gs.Node, slots: Slots, graph: gs.Graph, recipe: Recipe, policy: TargetPolicy
) -> Iterator[Placement]:
    for slot in range(len(node.inputs)) if slots.inputs == "all" else slots.inputs:
        if slot < len(node.inputs) and _is_open(node.inputs[slot]):
            operand = node.inputs[slot]
            if isinstance(operand, gs.Constant) and slot not in slots.weights:
                yield from _place_constant(node, slot, operand, recipe, slot in slots.gains)
                continue
            placement = place_input(node, slot, recipe, policy)
            if placement is not None:
                yield placement.model_copy(update={"rounding": NEAREST})
    absorbed = () if policy.one_scale(node) else policy.absorbed
    for slot in range(len(node.outputs)) if slots.outputs == "all" else slots.outputs:
        if slot < len(node.outputs) and _is_open(node.outputs[slot]):
            written = find_written(node.outputs[slot], graph.outputs, absorbed)
            yield from _place_output(node, written, graph, recipe)


def _place_constant(
    node: gs.Node, slot: int, tensor: gs.Constant, recipe: Recipe, is_gain: bool
) -> Iterator[Placement]:
    """Place a constant operand in the format of activations, for kernels take one type for all operands.

    A gain has 8 bits in any case.
    """
    scheme = recipe.activation_for(node.name, node.op, tensor.name)
    if scheme is not None and _has_one_static_scale(scheme):
        yield from _in_format(node, slot, tensor, QuantSpec(**list_numbers(scheme)), is_gain)


def _in_format(
    node: gs.Node, slot: int, tensor: gs.Constant, spec: QuantSpec, is_gain: bool
) -> Iterator[Placement]:
    if 0 not in tensor.shape and np.isfinite(constant_array(tensor)).all():
        yield Placement(
            tensor=tensor.name,
            role="weight",
            spec=spec.model_copy(update={"qtype": qtype_by_name("uint8")}) if is_gain else spec,
            uses=(Use(node.name, slot),),
            why=f"constant operand of {node.op}",
            float_type=float_type(tensor) or "float32",
        )


def place_operands(
    placements: Sequence[Placement], graph: gs.Graph, policy: TargetPolicy
) -> Iterator[Placement]:
    """Yield a placement of each constant operand that the policy lists and `placements` lack.

    It has the format of another operand of its node.
    """
    placed = {use: placement for placement in placements for use in placement.uses}
    tensors = {placement.tensor for placement in placements}
    made: dict[str, Placement] = {}
    for node in graph.nodes:
        slots, count = policy.operators.get(node.op, Slots()), len(node.inputs)
        beside = (placed[use] for slot in range(count) if (use := Use(node.name, slot)) in placed)
        given = next((one for one in beside if one.role == "activation" and has_one_scale(one)), None)
        if slots.between_units and tensors.isdisjoint(one.name for one in node.outputs):
            continue
        for slot in range(count) if slots.inputs == "all" else slots.inputs:
            tensor = node.inputs[slot] if slot < count else None
            is_known = not isinstance(tensor, gs.Constant) or tensor.name in tensors or slot in slots.weights
            if given is None or tensor is None or is_known or not _is_open(tensor):
                continue
            for one in _in_format(node, slot, tensor, given.spec, slot in slots.gains):
                known = made.setdefault(one.tensor, one)
                if known.spec == one.spec and known is not one:
                    made[one.tensor] = known.model_copy(update={"uses": (*known.uses, *one.uses)})
    yield from made.values()


def _has_one_static_scale(scheme: ActivationScheme) -> bool:
    return scheme.granularity == "per_tensor" and not scheme.dynamic


def _is_open(tensor: gs.Tensor) -> bool:
    """Tell whether `tensor` holds floats that the model does not quantize itself."""
    return float_type(tensor) is not None and not is_dequantized(tensor)


def _place_output(node: gs.Node, tensor: gs.Tensor, graph: gs.Graph, recipe: Recipe) -> Iterator[Placement]:
    scheme = recipe.activation_for(node.name, node.op, tensor.name)
    uses = tuple(uses_of(tensor, graph.outputs))
    if scheme is not None and uses and _has_one_static_scale(scheme):
        yield activation_placement(tensor, scheme, PER_TENSOR, uses, f"output of {node.op}")


def uses_of(tensor: gs.Tensor, outputs: Collection[gs.Tensor] = ()) -> Iterator[Use]:
    """Yield every slot that reads `tensor`, and its position among the model outputs."""
    readers = {id(reader): reader for reader in tensor.outputs}
    for reader in readers.values():
        yield from (Use(reader.name, slot) for slot, read in enumerate(reader.inputs) if read is tensor)
    yield from (Use("", number) for number, output in enumerate(outputs) if output is tensor)


_NORMS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization")
BIASED = (*BIASED_PRODUCTS, *_NORMS)
"""Operators that add a bias to products, or to numbers times a gain."""

BIAS_SLOT = 2
"""Input of the bias."""


def place_biases(
    placements: Sequence[Placement], graph: gs.Graph, recipe: Recipe | None, policy: TargetPolicy
) -> Iterator[Placement]:
    """Yield a placement of each bias that can have the scale of its products, if the policy has a bias type.

    Such a bias is a float32 constant [channels] with one reader. Its node has an input with one static scale,
    and a weight with one scale or one per output channel. A recipe may keep it in float by an override.
    """
    placed = {use: placement for placement in placements for use in placement.uses}
    for node in nodes_by_graph(graph) if policy.bias_qtype else ():
        if node.op not in BIASED or len(node.inputs) <= BIAS_SLOT:
            continue
        bias, known = node.inputs[BIAS_SLOT], [placed.get(Use(node.name, slot)) for slot in (0, 1)]
        data, weight = known
        if data is None or weight is None or not has_one_scale(data) or not _is_plain(node, bias):
            continue
        if not policy.runs_in_integers([data, weight]):
            continue
        axis = _axis_of(node, weight)
        if axis is None or (recipe is not None and recipe.explain_float(node.name, node.op, bias.name)):
            continue
        granularity = Granularity(0 if axis else None)
        yield Placement(
            tensor=bias.name,
            role="bias",
            spec=QuantSpec(qtype=qtype_by_name(policy.bias_qtype), granularity=granularity),
            uses=(Use(node.name, BIAS_SLOT),),
            why=f"bias of {node.op}, at the scale of {data.tensor!r} times the scale of {weight.tensor!r}",
        )


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
    if axis is None or granularity != Granularity(axis) or shape[axis] != node.inputs[BIAS_SLOT].shape[0]:
        return None
    return True

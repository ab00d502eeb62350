"""`make_plan`: a plan from a model and a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement, Plan, QuantizableNode, Skipped
from onnxfq.documents.product_times import ProductTimes, load_times
from onnxfq.documents.recipe import SMALL_RULES, Recipe
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.model import Model
from onnxfq.graph.names import Use
from onnxfq.graph.node_notes import module_paths
from onnxfq.graph.ops import QUANTIZED_OPS, WEIGHTED_INPUTS, explain_opaque, is_weighted
from onnxfq.graph.patterns.whole_numbers import find_whole_numbers
from onnxfq.graph.queries import (
    collect_tensors,
    is_dequantized,
    nodes_by_graph,
    nodes_out_of_reach,
    read_in_float,
)
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.placement.caches import place_caches
from onnxfq.placement.channel_scales import scale_channels
from onnxfq.placement.costly_parts import leave_out_costly
from onnxfq.placement.equalization import equalize_depthwise
from onnxfq.placement.left_out import (
    OPERATORS,
    leave_out_depthwise,
    leave_out_fixed,
    leave_out_log_spectra,
    leave_out_small,
)
from onnxfq.placement.operators import decide_operators, place_biases
from onnxfq.placement.pass_through_ops import list_moves, place_bridges
from onnxfq.placement.paying import leave_out_slow
from onnxfq.placement.residual_adds import RESIDUAL, residual_skip
from onnxfq.placement.routers import leave_out_routers
from onnxfq.placement.skip_reasons import float_tensors, kept_operators, opaque_operators
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.placement.weighted_ops import decide_weighted, place_activation, refuse
from onnxfq.runtime.type_inference import with_found_types
from onnxfq.support.reasons import rule_of
from onnxfq.targets.reading.runtime_forms import keep_forms
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import prepare_model, target_by_name


def make_plan(model: Model, recipe: Recipe, *, strict: bool = True) -> Plan:
    """Decide for every tensor of `model` whether and how it is quantized, with the reason.

    Names refer to the model as the target prepares it.

    Args:
        model: the normalised float model.
        recipe: what is quantized and how.
        strict: whether an override that sets a format for nothing is an error; files of other tools may have
            formats of tensors that the target does not quantize.

    Raises RecipeError for an unregistered target, and for overrides that match nothing or request formats
    that the target rejects; ModelError for a model that is quantized already or has nothing to quantize.
    """
    policy = target_by_name(recipe.target).policy
    if recipe.embeddings == "quantize" and "Gather" not in policy.operators:
        raise RecipeError(f"target {recipe.target} has no embeddings in blocks; leave out embeddings")
    typed, untold = with_found_types(prepare_model(model, recipe.target))
    graph = typed.graph()
    if recipe.existing != "keep":
        refuse_quantized(graph, model.source)
    tensors = collect_tensors(graph)
    recipe = recipe.for_modules(module_paths(model.proto.graph))
    nodes = nodes_by_graph(graph)
    recipe.check_names({node.name: node.op for node in nodes}, set(tensors))
    recipe = recipe.with_overrides(keep_forms(nodes, typed.opset, recipe.target))
    whole = find_whole_numbers(typed.index)
    times = load_times(recipe.pays) if recipe.pays else None
    weighted = _decide_weighted(graph, recipe, policy, times)
    decisions = decide_operators(graph, weighted, recipe, policy, whole)
    decisions += _decide_residuals(graph, recipe, policy, {d.node for d in decisions if d.placements})
    placements = [_note_float_readers(p, tensors) for p in _merge(decisions)]
    placements = scale_channels(placements, graph, policy)
    if policy.equalizes:
        placements = equalize_depthwise(placements, graph, recipe)
    placements, bridges = place_bridges(placements, graph, recipe, policy)
    bridges += list_moves(placements, graph, policy)
    considered = {d.node for d in decisions} | {bridge.node for bridge in bridges}
    if strict:
        _refuse_idle_overrides(graph, recipe, considered, {p.tensor for p in placements})
    _refuse_moved_weights(placements, recipe)
    caches = {placement.tensor: placement for placement in place_caches(graph, recipe)}
    placements = [p for p in placements if p.tensor not in caches] + list(caches.values())
    biases = list(place_biases(placements, graph, recipe, policy))
    placements += biases
    opaque = list(opaque_operators(graph))
    kept = {d.node: d.why_float for d in decisions if d.why_float} | {s.name: s.why for s in opaque}
    if not placements and not any(rule_of(d.why_float) in SMALL_RULES for d in decisions):
        untold = f". ONNX Runtime cannot infer the types either: {untold}" if untold else ""
        raise ModelError(_describe_nothing_to_quantize(model.source, decisions, opaque) + untold)
    added = {use.node: (use,) for placement in biases for use in placement.uses}
    skipped = [
        Skipped(name=d.node, kind="node", op_type=d.op_type, why=d.why_float)
        for d in decisions
        if d.why_float
    ]
    skipped += kept_operators(
        graph, placements, recipe, {d.node for d in decisions} | {s.name for s in opaque}
    )
    counted = [
        QuantizableNode(node=d.node, op_type=d.op_type, needs=(*d.needs, *added.get(d.node, ())))
        for d in decisions
        if not d.by_rule
    ]
    counted += [QuantizableNode(node=s.name, op_type=s.op_type, needs=()) for s in opaque]
    return Plan(
        model_sha256=model.sha256,
        recipe=recipe.name,
        target=recipe.target,
        placements=tuple(placements),
        nodes=tuple(counted),
        existing=recipe.existing,
        pays="" if times is None else times.name,
        simulation=recipe.simulation,
        bridges=tuple(bridges),
        skipped=tuple(skipped + opaque + list(float_tensors(graph, placements, kept, policy))),
    )


_NAMED = 3
"""Reasons that an error about a model names."""

# Together they place every activation of the built-in recipes: the first all inputs of weighted operators
# and the skip branches of residual sums, the second the inputs that the first keeps in float. Recipes of QNN
# quantize every result, which would make each observation dearer.
_WIDEST = ("tensorrt-int8", "onnxruntime-int8", "openvino-int8")


def observation_plan(model: Model) -> Plan:
    """Return a plan of all activations that built-in recipes other than QNN's may need, to observe them once.

    Its statistics serve every plan whose overrides add no activations. All names refer to the model as the
    target of the first recipe prepares it; if another target prepares it differently, observe that plan
    itself. Raises ModelError as `make_plan`.
    """
    model = prepare_model(model, RECIPES[_WIDEST[0]].target)
    all_nodes = dict.fromkeys(("log_spectra", "conv_transpose", "unfused_attention"), "quantize")
    wide = [RECIPES[name].model_copy(update=all_nodes) for name in _WIDEST]
    # Equalized tensors have no common scale, and so their Concat has one only where nothing is equalized.
    wide.append(wide[0].override(activations={"equalize": "none"}))
    plans = [make_plan(model, recipe) for recipe in wide]
    placements = {p.tensor: p for plan in plans for p in plan.activations}
    # A tensor with ranges of channels also has the statistics of the whole tensor.
    placements |= {p.tensor: p for plan in plans for p in plan.activations if p.observes_channels}
    return plans[0].model_copy(update={"recipe": "all", "placements": tuple(placements.values())})


def refuse_quantized(graph: gs.Graph, source: str) -> None:
    """Raise ModelError if the graph holds operators of a quantized model."""
    found = sorted({node.op for node in nodes_by_graph(graph)} & QUANTIZED_OPS)
    if found:
        raise ModelError(
            f"{source} is already quantized (it has {', '.join(found)}); give the float model, "
            "--keep-existing to quantize the rest, or --requantize to remove its quantizers first"
        )


def _decide_weighted(
    graph: gs.Graph, recipe: Recipe, policy: TargetPolicy, times: ProductTimes | None
) -> list[NodeDecision]:
    beyond = nodes_out_of_reach(graph)
    nodes = list(nodes_by_graph(graph))
    weighted = [node for node in nodes if is_weighted(node) and node.name not in beyond]
    decisions = _as_a_whole(
        [decide_weighted(node, recipe, policy) for node in weighted], graph, recipe, policy, times
    )
    # The float nodes are known now: tensors that they read through a Transpose must not be rounded.
    unrounded = read_in_float(graph, beyond.keys() | {d.node for d in decisions if d.why_float})
    decisions = [
        d if d.why_float else decide_weighted(node, recipe, policy, unrounded)
        for node, d in zip(weighted, decisions, strict=True)
    ]
    decisions = _as_a_whole(decisions, graph, recipe, policy, times)
    if policy.join is not None:
        unrounded = read_in_float(graph, beyond.keys() | {d.node for d in decisions if d.why_float})
        decisions = policy.join(decisions, nodes, recipe, policy, unrounded)
    return decisions


def _as_a_whole(
    decisions: list[NodeDecision],
    graph: gs.Graph,
    recipe: Recipe,
    policy: TargetPolicy,
    times: ProductTimes | None,
) -> list[NodeDecision]:
    """Return `decisions` after the rules that consider more than one operand."""
    nodes = nodes_by_graph(graph)
    decisions = leave_out_routers(leave_out_fixed(decisions, nodes), nodes)
    if recipe.log_spectra == "float":
        decisions = leave_out_log_spectra(decisions, graph, policy)
    if recipe.depthwise == "float":
        decisions = leave_out_depthwise(decisions, nodes)
    if recipe.small_shapes != "quantize":
        decisions = leave_out_small(decisions, nodes, OPERATORS[recipe.small_shapes])
        decisions = leave_out_costly(decisions, nodes, recipe)
    if times is not None:
        decisions = leave_out_slow(decisions, graph, policy, times)
    return policy.revise(decisions, nodes, recipe)


def _decide_residuals(
    graph: gs.Graph, recipe: Recipe, policy: TargetPolicy, quantized: set[str]
) -> list[NodeDecision]:
    decisions = []
    beyond = nodes_out_of_reach(graph)
    for node in nodes_by_graph(graph) if policy.residual else ():
        skip = None if node.name in beyond else residual_skip(node, quantized)
        if skip is None:
            continue
        placement = place_activation(node, skip.slot, recipe, policy, "skip branch of a residual Add")
        # An Add takes no scales that change from row to row or from run to run.
        if placement is None or placement.spec.dynamic:
            continue
        if is_dequantized(node.inputs[skip.slot]):
            continue
        why_float, by_rule = skip.why_float, bool(skip.why_float)
        if not by_rule:
            why_float = recipe.explain_float(node.name, node.op, placement.tensor)
        if not why_float:
            refuse(Operands(node, (placement,), {}), policy)
        placed = () if why_float else (placement,)
        decisions.append(NodeDecision(node.name, RESIDUAL, placement.uses, placed, why_float, by_rule))
    return decisions


def _merge(decisions: list[NodeDecision]) -> list[Placement]:
    """Join the placements of one tensor: activations must agree, weights fall back to one scale."""
    merged: dict[str, Placement] = {}
    for decision in decisions:
        for placement in decision.placements:
            known = merged.get(placement.tensor)
            merged[placement.tensor] = placement if known is None else _join(known, placement, decision)
    return list(merged.values())


def _refuse_moved_weights(placements: Sequence[Placement], recipe: Recipe) -> None:
    """Raise RecipeError if the simulation would round weights again that moments put on their grid.

    A number of the grid divided by its scale may be just below its integer: only rounding to the nearest
    gives that integer.
    """
    if recipe.simulation.rounding.startswith("half_"):
        return
    for placement in placements:
        if placement.rounding != NEAREST:
            raise RecipeError(
                f"recipe {recipe.name}: simulation.rounding {recipe.simulation.rounding} may move weight "
                f"{placement.tensor!r}, which {placement.rounding} puts on its grid; use weights.rounding "
                "nearest"
            )


def _note_float_readers(placement: Placement, tensors: dict[str, gs.Tensor]) -> Placement:
    """Add to the reason of a weight that a node also reads it in float, if so."""
    if placement.role != "weight":
        return placement
    constant = tensors[placement.tensor]
    readers = [
        node
        for node in constant.outputs
        for slot, read in enumerate(node.inputs)
        if read is constant and Use(node.name, slot) not in placement.uses
    ]
    if not readers:
        return placement
    first = f"{readers[0].op} {readers[0].name!r}"
    note = f"; {first} reads it in float, so it is stored in both forms"
    return placement.model_copy(update={"why": placement.why + note})


def _join(known: Placement, more: Placement, decision: NodeDecision) -> Placement:
    uses = tuple(dict.fromkeys((*known.uses, *more.uses)))
    spec, notes = known.spec, [note for note in more.why.split("; ")[1:] if note not in known.why]
    why = "; ".join([known.why, *notes])
    if known.rounding != more.rounding:
        raise RecipeError(
            f"weight {known.tensor!r} is asked to be rounded by {known.rounding} for {known.uses[0].node!r} "
            f"and by {more.rounding} for {decision.node!r}; override it by tensor name"
        )
    if (known.spec, known.calibrator) != (more.spec, more.calibrator):
        same_kind = known.calibrator == more.calibrator
        same_kind &= known.spec.model_copy(update={"granularity": more.spec.granularity}) == more.spec
        if known.role == "activation" and same_kind:
            raise RecipeError(
                f"tensor {known.tensor!r} is summed along another axis by {known.uses[0].node!r} than by "
                f"{decision.node!r}, and is rounded once: {known.spec} or {more.spec}; leave one of the "
                "two in float by an override"
            )
        if known.role != "weight" or more.role != "weight" or not same_kind:
            raise RecipeError(
                f"tensor {known.tensor!r} is asked to be {known.spec} for {known.uses[0].node!r} and "
                f"{more.spec} for {decision.node!r}; override it by tensor name"
            )
        if known.spec.granularity.block_size is not None:
            raise RecipeError(
                f"weight {known.tensor!r} is blocked along different axes for {known.uses[0].node!r} and "
                f"{decision.node!r}; leave one of them in float by an override"
            )
        spec = known.spec.model_copy(update={"granularity": PER_TENSOR})
        why = "weight shared by operators with different channel axes, per tensor"
    return known.model_copy(update={"uses": uses, "spec": spec, "why": why})


def _refuse_idle_overrides(
    graph: gs.Graph, recipe: Recipe, considered: Collection[str], placed: Collection[str]
) -> None:
    """Raise RecipeError for an override of formats that matches no operator which is quantized here.

    One that keeps nodes in float holds for nodes that are in float anyway, and one for an operator that
    multiplies inside may be meant for a torch module.

    Args:
        graph: the model.
        recipe: with the overrides.
        considered: names of nodes that the plan quantizes, or leaves in float by a rule or an override.
        placed: quantized tensors, whose readers may come later.
    """
    asked = [one for one in recipe.overrides if one.activations is None or one.activations or one.weights]
    nodes = list(nodes_by_graph(graph)) if asked else []
    reached = [node for node in nodes if node.name in considered or explain_opaque(node)]
    slots = [(node.name, node.op, tensor.name) for node in reached for tensor in node.inputs]
    slots += [("", "", tensor) for tensor in placed]
    for override in asked:
        if not slots or any(override.matches(*slot) for slot in slots):
            continue
        named = [*override.tensors, *override.nodes, *override.op_types]
        found = [
            n for n in nodes if any(override.matches(n.name, n.op, t.name) for t in (*n.inputs, *n.outputs))
        ]
        readers = [r for n in found for t in n.outputs for r in t.outputs if r.name in considered]
        instead = f", such as {readers[0].op} {readers[0].name!r}, which reads it" if readers else ""
        known = sorted({node.op for node in reached})
        raise RecipeError(
            f"recipe {recipe.name}: the override of {', '.join(named)} sets a format but matches no input "
            f"that target {recipe.target} quantizes; here those are inputs of {', '.join(known)}{instead}"
        )


def _describe_nothing_to_quantize(source: str, decisions: list[NodeDecision], opaque: list[Skipped]) -> str:
    if decisions:
        # The reason that most nodes have: one odd node says little about the model.
        common = Counter((d.op_type, str(d.why_float)) for d in decisions).most_common()
        first = next(d for d in decisions if (d.op_type, str(d.why_float)) == common[0][0])
        others = [f"{count} {op_type}: {why}" for (op_type, why), count in common[1:_NAMED]]
        rest = f" ({len(decisions)} operators; also {'; '.join(others)})" if others else ""
        remedy = (
            "; export the model in float32 or float16" if rule_of(first.why_float) == "float-type" else ""
        )
        number = f"{common[0][1]} {first.op_type}, first" if common[0][1] > 1 else first.op_type
        return f"{source}: nothing to quantize: {number} {first.node!r}: {first.why_float}{rest}{remedy}"
    for inner in opaque[:1]:
        return f"{source}: nothing to quantize: {inner.op_type} {inner.name!r} stays in float, {inner.why}"
    known = ", ".join(WEIGHTED_INPUTS)
    return f"{source}: nothing to quantize: it has no {known}; give a model with one of them"

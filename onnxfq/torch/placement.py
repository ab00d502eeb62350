"""Plan of a torch module: quantized tensors and reasons for float, a `Plan` as for an ONNX model.

Nodes are the layers, named by their path in the module, and operations of a forward, named path.operation.
Tensors are "path.weight", "path.input" and the inputs of operations. Overrides match these names, torch's
types (Conv2d) and the ONNX operators they become (Conv): a recipe by operators works for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.documents.plan import Placement, Plan, QuantizableNode, Role, Skipped
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import AUTO, NEAREST
from onnxfq.documents.schemes import ActivationScheme, WeightScheme
from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.names import Use
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.left_out import WHY_FLOAT
from onnxfq.placement.target_policy import Operands
from onnxfq.placement.weighted_ops import (
    choose_calibrator,
    choose_granularity,
    explain_transposed,
    list_numbers,
    refuse,
)
from onnxfq.targets.target import target_by_name
from onnxfq.torch.attention import ACTIVATIONS, explain_unsupported
from onnxfq.torch.fx_ops import FxSite, OnnxNode, explain_unquantized, is_depthwise
from onnxfq.torch.fx_trace import Trace, calls, has_own_code
from onnxfq.torch.layers import LayerKind, float_weight, layer_kind


def find_sites(model: nn.Module, recipe: Recipe, trace: Trace) -> list[FxSite]:
    """Return every layer and operation that may be quantized, in the order of the modules."""
    residual = target_by_name(recipe.target).policy.residual
    sites: list[FxSite] = []
    for path, module in model.named_modules():
        kind = layer_kind(module)
        if kind is not None:
            sites.append(_layer_site(path, module, kind))
        elif has_own_code(module):
            code, name = trace(module), type(module).__name__
            if code.why_not:
                sites.append(FxSite(path or name, path, name, ("forward",), (), why_float=code.why_not))
            for site in calls(code):
                if residual or not site.residual:
                    full = f"{path}.{site.name}" if path else site.name
                    sites.append(replace(site, name=full, owner=path))
    return sites


def _layer_site(path: str, module: nn.Module, kind: LayerKind) -> FxSite:
    reason = ""
    weights = kind.weights(module)
    activations: tuple[str, ...] = ("input",) if kind.has_input else ()
    if isinstance(module, nn.MultiheadAttention):
        reason, activations = explain_unsupported(module), ACTIVATIONS
    parameters = {name: float_weight(module, name) for name in weights}
    if any(is_lazy(weight) for weight in parameters.values()):
        raise ModelError(
            f"layer {path!r}, a {type(module).__name__}, has no weight yet; run data through the model once, "
            "then quantize it"
        )
    reason = reason or explain_unquantized(parameters)
    base = type(module).__name__
    alone = is_depthwise(kind.op_types, parameters, getattr(module, "groups", 1))
    names = (path, path, base, kind.op_types, activations, weights)
    return FxSite(*names, parameters, kind, reason, depthwise=alone)


def plan_module(
    model: nn.Module,
    recipe: Recipe,
    sites: list[FxSite],
    made_by: Mapping[str, str],
    attentions: Sequence[tuple[str, str]],
) -> Plan:
    """Return the plan of `recipe` for the sites.

    Args:
        model: the module.
        recipe: formats, and overrides by layer, operator and tensor.
        sites: of the module.
        made_by: the operator that produces a tensor of known range (`known_range_ops`).
        attentions: the names of both products of each attention (`attentions`).

    Raises RecipeError for names that match nothing and for formats that the target does not accept;
    ModelError if there is nothing to quantize.
    """
    recipe = recipe.for_modules({site.name: site.name for site in sites})
    spoken = _translate_overrides(recipe, sites)
    tensors = {site.tensor(name) for site in sites for name in (*site.activations, *site.weights)}
    spoken.check_names({site.name: site.type_name for site in sites}, tensors)
    if spoken.small_shapes == "float":
        raise RecipeError(
            f"recipe {recipe.name} leaves small shapes in float, but a module has no shapes before it runs; "
            "remove small_shapes and name layers to keep in float"
        )
    if any(spoken.channel_methods[:2]):
        raise RecipeError(
            f"recipe {recipe.name} equalizes or smooths channels, which rewrites ONNX models only; set "
            "smooth: none and equalize: depthwise or none, or quantize the exported model"
        )
    if spoken.bias_correction != "none":
        raise RecipeError(
            f"recipe {recipe.name} corrects biases, which quantize does for ONNX models only; set "
            "bias_correction: none, or quantize the exported model"
        )
    placements: list[Placement] = []
    nodes, skipped = [], []
    decided = {site.name: _decide(site, spoken, made_by) for site in sites}
    whole = target_by_name(recipe.target).policy.whole_attention
    if whole:
        _keep_whole(decided, attentions, whole)
    for site in sites:
        placed, why_float = decided[site.name]
        is_code = site.op_types == ("forward",)
        if why_float:
            skipped.append(Skipped(name=site.name, kind="node", op_type=site.type_name, why=why_float))
        else:
            placements += placed
        if not is_code and not (site.residual and site.why_float):
            needs = tuple(placement.uses[0] for placement in placed)
            nodes.append(QuantizableNode(node=site.name, op_type=site.type_name, needs=needs))
    if not placements:
        first = f": {skipped[0].name!r}: {skipped[0].why}" if skipped else ": it has no layer that multiplies"
        raise ModelError(f"{type(model).__name__}: nothing to quantize{first}")
    return Plan(
        model_sha256="",
        recipe=recipe.name,
        target=recipe.target,
        placements=tuple(placements),
        nodes=tuple(nodes),
        skipped=tuple(skipped),
        simulation=recipe.simulation,
    )


def _keep_whole(
    decided: dict[str, tuple[list[Placement], str]], attentions: Sequence[tuple[str, str]], reason: str
) -> None:
    """Leave a product of an attention in float, for `reason`, if the other product is in float."""
    for pair in attentions:
        known = [name for name in pair if name in decided]
        low = [name for name in known if decided[name][0] and not decided[name][1]]
        if len(known) == 2 and len(low) == 1:
            (kept,) = set(pair) - set(low)
            placed, _ = decided[low[0]]
            why = f"half of an attention: {kept!r} stays in float ({decided[kept][1]}), and {reason}"
            decided[low[0]] = placed, why


def _decide(site: FxSite, recipe: Recipe, made_by: Mapping[str, str]) -> tuple[list[Placement], str]:
    """Return the placements of one site, and why it nevertheless stays float; empty if it does not."""
    names: list[tuple[str, Role]] = [(name, "activation") for name in site.activations]
    names += [(name, "weight") for name in site.weights]
    op_type, placed, kept = site.type_name, [], site.why_float
    if not kept and site.depthwise and recipe.depthwise == "float":
        kept = WHY_FLOAT
    for slot, (name, role) in enumerate(names):
        tensor = site.tensor(name)
        kept = kept or recipe.explain_float(site.name, op_type, tensor)
        spec: QuantSpec | None
        if role == "weight":
            assert site.kind is not None
            weights = recipe.weight_for(site.name, op_type, tensor)
            numbers, calibrator = _numbers(weights, recipe), weights.calibrator
            # Other block sizes are for ONNX models.
            one_size = weights.model_copy(update={"other_block_sizes": ()})
            policy, axes = (
                target_by_name(recipe.target).policy,
                (site.kind.summed_axis, site.kind.channel_axis),
            )
            shape = tuple(site.parameters[name].shape)
            granularity, why = choose_granularity(site.op_types[0], shape, one_size, policy, *axes)
            spec, why = QuantSpec(**numbers, granularity=granularity), f"weight of {op_type}, {why}"
            if weights.rounding not in (AUTO, NEAREST):
                why += f"; rounded to nearest: rounding {weights.rounding} is for ONNX models"
        else:
            scheme = recipe.activation_for(site.name, op_type, tensor)
            spec = None if scheme is None else QuantSpec(**_numbers(scheme, recipe))
            why = "skip branch of a residual Add" if site.residual else f"input of {op_type}"
            if site.depthwise and scheme is not None and scheme.equalize == "depthwise":
                why += "; one scale for all channels: equalize depthwise is for ONNX models"
            calibrator, known = MINMAX, ""
            if scheme is not None:
                calibrator, known = choose_calibrator(scheme, made_by.get(tensor, ""))
            why += known
        if spec is not None:
            use = Use(site.name, slot)
            placed.append(
                Placement(tensor=tensor, role=role, spec=spec, uses=(use,), why=why, calibrator=calibrator)
            )
    if kept:
        return placed, kept
    if site.kind is not None and not site.kind.has_input and not _is_requested(recipe, site):
        return placed, (
            f"target {recipe.target} has no quantized {op_type}; an override with weights quantizes it"
        )
    if not placed:
        return [], f"recipe {recipe.name} quantizes weights only, and {op_type} has none"
    return placed, _explain_target(site, recipe, placed)


def _is_requested(recipe: Recipe, site: FxSite) -> bool:
    tensors = [site.tensor(name) for name in site.weights]
    return not target_by_name(recipe.target).has_pairs or any(
        override.weights and override.matches(site.name, site.type_name, tensor)
        for override in recipe.overrides
        for tensor in tensors
    )


def _numbers(scheme: ActivationScheme | WeightScheme, recipe: Recipe) -> dict[str, Any]:
    """Return the number format of `scheme` as the fields of a spec.

    Raises RecipeError for features that a module does not have: formula-derived scales, several scales of an
    activation, and fractional zero points.
    """
    dynamic = isinstance(scheme, ActivationScheme) and scheme.dynamic
    in_parts = isinstance(scheme, ActivationScheme) and scheme.granularity != "per_tensor"
    if dynamic or in_parts or scheme.scale_type != "float32" or scheme.zero_point == "fractional":
        what = f"scale_type {scheme.scale_type}"
        what = f"granularity {scheme.granularity} of activations" if in_parts else what
        what = "dynamic scales" if dynamic else what
        what = "fractional zero points" if scheme.zero_point == "fractional" else what
        raise RecipeError(
            f"recipe {recipe.name} asks for {what}, which torch modules do not have; quantize the exported "
            "ONNX model with it"
        )
    return list_numbers(scheme)


def _explain_target(site: FxSite, recipe: Recipe, placed: list[Placement]) -> str:
    """Return why the target would run a site in float nevertheless; empty if it would not.

    Raises RecipeError if the target does not accept one of its placements.
    """
    shapes = {site.tensor(name): tuple(weight.shape) for name, weight in site.parameters.items()}
    # Shapes are unknown before the module runs.
    names = (site.tensor(name) for name in (*site.activations, *site.weights))
    inputs = tuple(SimpleNamespace(name=name, shape=None) for name in names)
    operands = Operands(OnnxNode(site.op_types[0], name=site.name, inputs=inputs), placed, shapes)
    policy = target_by_name(recipe.target).policy
    refuse(operands, policy)
    multiplies = site.kind is None or site.kind.has_input
    if not multiplies or site.residual:
        return ""
    return policy.keeps_float(operands) or explain_transposed(site.op_types[0], recipe, policy)


def _translate_overrides(recipe: Recipe, sites: list[FxSite]) -> Recipe:
    """Return the recipe with the ONNX operators in its overrides replaced by the matching torch types."""
    types: dict[str, list[str]] = {}
    for site in sites:
        for op_type in site.op_types:
            names = types.setdefault(op_type, [])
            names += [] if site.type_name in names else [site.type_name]
    overrides = tuple(
        override.model_copy(
            update={"op_types": tuple(t for op in override.op_types for t in types.get(op, [op]))}
        )
        for override in recipe.overrides
    )
    return recipe.model_copy(update={"overrides": overrides})

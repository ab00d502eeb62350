"""Plan of the layers of a torch module, as far as it is known before the module has run.

Nodes are the layers, named by their path in the module, and tensors are "path.weight" and "path.input".
Overrides match these names, torch's types (Conv2d) and the ONNX operators they become (Conv): a recipe by
operators works for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.documents.plan import Placement, Plan, QuantizableNode, Role, Skipped
from onnxfq.documents.plan_text import plan_summary
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
from onnxfq.torch.layers import LayerKind, float_weight, layer_kind


class LayerPlan(Plan):
    """Plan of a module, which prints as the commands print plans."""

    def __str__(self) -> str:
        """Return coverage, counts, and the reasons for float."""
        return plan_summary(self)


@dataclass(frozen=True)
class Layer:
    """Layer before the recipe is applied.

    Attributes:
        name: its path.
        type_name: its type in the plan.
        kind: what quantization knows of the type.
        activations: names of the tensors that it reads.
        parameters: its weights by name.
        why_float: why it cannot be quantized; empty if it can.
        depthwise: whether its groups read one channel each.
    """

    name: str
    type_name: str
    kind: LayerKind
    activations: tuple[str, ...]
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    why_float: str = ""
    depthwise: bool = False

    def tensor(self, name: str) -> str:
        """Return the full name of a tensor of the layer."""
        return f"{self.name}.{name}" if self.name else name


def find_layers(model: nn.Module) -> list[Layer]:
    """Return every layer that may be quantized, in the order of the modules."""
    found = ((path, module, layer_kind(module)) for path, module in model.named_modules())
    return [_make_layer(path, module, kind) for path, module, kind in found if kind is not None]


def _make_layer(path: str, module: nn.Module, kind: LayerKind) -> Layer:
    reason = ""
    activations: tuple[str, ...] = ("input",) if kind.has_input else ()
    if isinstance(module, nn.MultiheadAttention):
        reason, activations = explain_unsupported(module), ACTIVATIONS
    parameters = {name: float_weight(module, name) for name in kind.weights(module)}
    if any(is_lazy(weight) for weight in parameters.values()):
        raise ModelError(
            f"layer {path!r}, a {type(module).__name__}, has no weight yet; run data through the model once, "
            "then quantize it"
        )
    reason = reason or _explain_unquantized(parameters)
    grouped = kind.op_types == ("Conv",) and getattr(module, "groups", 1) > 1
    alone = grouped and all(weight.shape[1] == 1 for weight in parameters.values())
    return Layer(path, type(module).__name__, kind, activations, parameters, reason, alone)


def _explain_unquantized(weights: Mapping[str, Tensor]) -> str:
    """Return why weights of such a type stay in float; empty if they are quantized."""
    for weight in weights.values():
        if not weight.dtype.is_floating_point or weight.dtype.itemsize > 4:
            return f"its weight is {weight.dtype}, and floats of 16 or 32 bits are quantized"
    return ""


def refuse_rewrites(recipe: Recipe) -> None:
    """Raise RecipeError for what a recipe does to ONNX models only."""
    if recipe.small_shapes == "float":
        raise RecipeError(
            f"recipe {recipe.name} leaves small shapes in float, but a module has no shapes before it runs; "
            "remove small_shapes and name layers to keep in float"
        )
    if any(recipe.channel_methods[:2]):
        raise RecipeError(
            f"recipe {recipe.name} equalizes or smooths channels, which rewrites ONNX models only; set "
            "smooth: none and equalize: depthwise or none, or quantize the exported model"
        )
    if recipe.bias_correction != "none":
        raise RecipeError(
            f"recipe {recipe.name} corrects biases, which quantize does for ONNX models only; set "
            "bias_correction: none, or quantize the exported model"
        )


def plan_layers(model: nn.Module, recipe: Recipe, layers: list[Layer]) -> Plan:
    """Return the plan of `recipe` for the layers; other operations of the module are in no plan yet.

    Raises RecipeError for formats that the target does not accept.
    """
    recipe = translate_op_types(recipe, {layer.type_name: layer.kind.op_types for layer in layers})
    placements: list[Placement] = []
    nodes, skipped = [], []
    for layer in layers:
        placed, why_float = _decide(layer, recipe)
        if why_float:
            skipped.append(Skipped(name=layer.name, kind="node", op_type=layer.type_name, why=why_float))
        else:
            placements += placed
        needs = tuple(placement.uses[0] for placement in placed)
        nodes.append(QuantizableNode(node=layer.name, op_type=layer.type_name, needs=needs))
    return LayerPlan(
        model_sha256="",
        recipe=recipe.name,
        target=recipe.target,
        placements=tuple(placements),
        nodes=tuple(nodes),
        skipped=tuple(skipped),
        simulation=recipe.simulation,
    )


def _decide(site: Layer, recipe: Recipe) -> tuple[list[Placement], str]:
    """Return the placements of one layer, and why it nevertheless stays float; empty if it does not."""
    names: list[tuple[str, Role]] = [(name, "activation") for name in site.activations]
    names += [(name, "weight") for name in site.parameters]
    op_type, placed, kept = site.type_name, [], site.why_float
    if not kept and site.depthwise and recipe.depthwise == "float":
        kept = WHY_FLOAT
    for slot, (name, role) in enumerate(names):
        tensor = site.tensor(name)
        kept = kept or recipe.explain_float(site.name, op_type, tensor)
        spec: QuantSpec | None
        if role == "weight":
            weights = recipe.weight_for(site.name, op_type, tensor)
            numbers, calibrator = _numbers(weights, recipe), weights.calibrator
            # Other block sizes are for ONNX models.
            one_size = weights.model_copy(update={"other_block_sizes": ()})
            policy, axes = (
                target_by_name(recipe.target).policy,
                (site.kind.summed_axis, site.kind.channel_axis),
            )
            shape = tuple(site.parameters[name].shape)
            granularity, why = choose_granularity(site.kind.op_types[0], shape, one_size, policy, *axes)
            spec, why = QuantSpec(**numbers, granularity=granularity), f"weight of {op_type}, {why}"
            if weights.rounding not in (AUTO, NEAREST):
                why += f"; rounded to nearest: rounding {weights.rounding} is for ONNX models"
        else:
            scheme = recipe.activation_for(site.name, op_type, tensor)
            spec = None if scheme is None else QuantSpec(**_numbers(scheme, recipe))
            why = f"input of {op_type}"
            if site.depthwise and scheme is not None and scheme.equalize == "depthwise":
                why += "; one scale for all channels: equalize depthwise is for ONNX models"
            calibrator, known = MINMAX, ""
            if scheme is not None:
                calibrator, known = choose_calibrator(scheme, "Softmax" if name == "context_input" else "")
            why += known
        if spec is not None:
            use = Use(site.name, slot)
            placed.append(
                Placement(tensor=tensor, role=role, spec=spec, uses=(use,), why=why, calibrator=calibrator)
            )
    if kept:
        return placed, kept
    if not site.kind.has_input and not _is_requested(recipe, site):
        return placed, (
            f"target {recipe.target} has no quantized {op_type}; an override with weights quantizes it"
        )
    if not placed:
        return [], f"recipe {recipe.name} quantizes weights only, and {op_type} has none"
    return placed, _explain_target(site, recipe, placed)


def _is_requested(recipe: Recipe, site: Layer) -> bool:
    tensors = [site.tensor(name) for name in site.parameters]
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


def _explain_target(site: Layer, recipe: Recipe, placed: list[Placement]) -> str:
    """Return why the target would run a layer in float nevertheless; empty if it would not.

    Raises RecipeError if the target does not accept one of its placements.
    """
    shapes = {site.tensor(name): tuple(weight.shape) for name, weight in site.parameters.items()}
    # Shapes are unknown before the module runs.
    names = (site.tensor(name) for name in (*site.activations, *site.parameters))
    inputs = tuple(SimpleNamespace(name=name, shape=None) for name in names)
    node = SimpleNamespace(
        op=site.kind.op_types[0], name=site.name, inputs=inputs, outputs=(), attrs={}, domain=""
    )
    operands = Operands(node, placed, shapes)
    policy = target_by_name(recipe.target).policy
    refuse(operands, policy)
    if not site.kind.has_input:
        return ""
    return policy.keeps_float(operands) or explain_transposed(site.kind.op_types[0], recipe, policy)


def translate_op_types(recipe: Recipe, op_types: Mapping[str, tuple[str, ...]]) -> Recipe:
    """Return the recipe with the ONNX operators in its overrides replaced by torch's types.

    Args:
        recipe: with overrides by type.
        op_types: the operators that each of torch's types becomes.
    """
    types: dict[str, list[str]] = {}
    for name, operators in op_types.items():
        for operator in operators:
            types.setdefault(operator, []).append(name)
    overrides = tuple(
        override.model_copy(
            update={"op_types": tuple(t for op in override.op_types for t in types.get(op, [op]))}
        )
        for override in recipe.overrides
    )
    return recipe.model_copy(update={"overrides": overrides})

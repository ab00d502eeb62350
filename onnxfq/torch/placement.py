"""Plan of the layers of a torch module, as far as it is known before the module has run.

Nodes are the layers, named by their path in the module, and tensors are "path.weight" and "path.input".
Overrides match these names, torch's types (Conv2d) and the ONNX operators they become (Conv): a recipe by
operators works for both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from onnxfq.documents.override import match_name
from onnxfq.documents.plan import Placement, Plan, QuantizableNode, Skipped
from onnxfq.documents.plan_text import plan_summary
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.names import Use
from onnxfq.placement.bare_products import list_products
from onnxfq.placement.left_out import WHY_FLOAT
from onnxfq.placement.target_policy import Operands, TargetPolicy
from onnxfq.placement.weighted_ops import decide_weighted, place_input, refuse
from onnxfq.targets.target import target_by_name
from onnxfq.torch.layers import LayerKind, float_weight, layer_kind, weights_of


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
        parameters: its weights by name.
        why_float: why it cannot be quantized; empty if it can.
        depthwise: whether its groups read one channel each.
    """

    name: str
    type_name: str
    kind: LayerKind
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    why_float: str = ""
    depthwise: bool = False

    def tensor(self, name: str) -> str:
        """Return the full name of a tensor of the layer."""
        return f"{self.name}.{name}" if self.name else name

    @property
    def tensors(self) -> list[str]:
        """Full names of what the layer reads."""
        return [self.tensor(name) for name in (*["input"] * self.kind.has_input, *self.parameters)]


def find_layers(model: nn.Module) -> list[Layer]:
    """Return every layer that may be quantized, in the order of the modules."""
    found = ((path, module, layer_kind(module)) for path, module in model.named_modules())
    return [_make_layer(path, module, kind) for path, module, kind in found if kind is not None]


def _make_layer(path: str, module: nn.Module, kind: LayerKind) -> Layer:
    parameters = {name: float_weight(module, name) for name in weights_of(module)}
    if any(is_lazy(weight) for weight in parameters.values()):
        raise ModelError(
            f"layer {path!r}, a {type(module).__name__}, has no weight yet; run data through the model once, "
            "then quantize it"
        )
    odd = (w.dtype for w in parameters.values() if not w.dtype.is_floating_point or w.dtype.itemsize > 4)
    dtype = next(odd, None)
    why_float = f"its weight is {dtype}, and floats of 16 or 32 bits are quantized" if dtype else ""
    grouped = kind.op_types == ("Conv",) and getattr(module, "groups", 1) > 1
    alone = grouped and all(weight.shape[1] == 1 for weight in parameters.values())
    return Layer(path, type(module).__name__, kind, parameters, why_float, alone)


def refuse_rewrites(recipe: Recipe) -> None:
    """Raise RecipeError for what a recipe does to ONNX models only."""
    found = {
        "leaves small shapes in float, but a module has no shapes before it runs; remove small_shapes and "
        "name layers to keep in float": recipe.small_shapes == "float",
        "judges layers by times of their sizes, which a module has not before it runs; leave out pays": bool(
            recipe.pays
        ),
        "equalizes, smooths or rotates channels, which rewrites ONNX models only; set smooth: none, rotate: "
        "none and equalize: depthwise or none, or quantize the exported model": (
            any(recipe.channel_methods[:2]) or recipe.rotate != "none"
        ),
        "corrects biases, which quantize does for ONNX models only; set bias_correction: none, or quantize "
        "the exported model": recipe.bias_correction != "none",
    }
    if what := next((what for what, is_asked in found.items() if is_asked), ""):
        raise RecipeError(f"recipe {recipe.name} {what}")


def plan_layers(recipe: Recipe, layers: Sequence[Layer]) -> Plan:
    """Return the plan of `recipe` for the layers; other operations of the module are in no plan yet.

    Raises RecipeError for formats that the target does not accept.
    """
    sites = {layer.name: (layer.name, (layer.type_name, *layer.kind.op_types)) for layer in layers}
    recipe = rename_overrides(recipe, sites, [(name, name) for layer in layers for name in layer.tensors])
    placements: list[Placement] = []
    nodes, skipped = [], []
    for layer in layers:
        for tensor in layer.tensors:
            refuse_features(recipe, layer.name, tensor, is_weight=tensor != layer.tensor("input"))
        decided, why_float = _decide(layer, recipe)
        needs = tuple(Use(layer.name, slot) for slot in range(len(decided)))
        for use, placement in zip(needs, decided, strict=True):
            why = placement.why.replace(layer.kind.form, layer.type_name, 1)
            placements.append(name_rounding(placement.model_copy(update={"uses": (use,), "why": why})))
        if why_float:
            skipped.append(Skipped(name=layer.name, kind="node", op_type=layer.type_name, why=why_float))
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


def name_rounding(placement: Placement) -> Placement:
    """Return a placement that says if its weight is rounded otherwise in an ONNX model."""
    if placement.role != "weight" or placement.rounding == NEAREST:
        return placement
    why = f"{placement.why}; rounded to nearest: rounding {placement.rounding} is for ONNX models"
    return placement.model_copy(update={"why": why})


def _decide(layer: Layer, recipe: Recipe) -> tuple[list[Placement], str]:
    """Return the placements of one layer, and why it stays float; empty if it does not."""
    policy = target_by_name(recipe.target).policy
    if layer.why_float or (layer.depthwise and recipe.depthwise == "float"):
        return [], layer.why_float or WHY_FLOAT
    if not layer.kind.has_input:
        return _decide_weights(layer, recipe, policy)
    (product,) = _list_products(layer)
    decided = decide_weighted(product, recipe, policy)
    return [] if decided.why_float else list(decided.placements), decided.why_float


def _decide_weights(layer: Layer, recipe: Recipe, policy: TargetPolicy) -> tuple[list[Placement], str]:
    """Decide on a layer whose input is not multiplied."""
    products = list(_list_products(layer))
    names = [product.inputs[1].name for product in products]
    kept = next(filter(None, (recipe.explain_float(layer.name, "", name) for name in names)), "")
    asked = any(
        one.weights and one.matches(layer.name, "", name) for one in recipe.overrides for name in names
    )
    if not kept and not asked and target_by_name(recipe.target).has_pairs:
        lacks = f"target {recipe.target} has no quantized {layer.type_name}"
        kept = f"{lacks}; an override with weights quantizes it"
    if kept:
        return [], kept
    placed = []
    for product in products:
        placement = place_input(product, 1, recipe, policy)
        assert placement is not None  # a weight
        refuse(Operands(product, [placement], {}), policy)
        placed.append(placement)
    return placed, ""


def _list_products(layer: Layer) -> Iterator[Any]:
    weights = {layer.tensor(name): tuple(weight.shape) for name, weight in layer.parameters.items()}
    read = layer.tensor("input") if layer.kind.has_input else ""
    return list_products(layer.name, layer.kind.form, read, weights)


def refuse_features(recipe: Recipe, node: str, tensor: str, is_weight: bool) -> None:
    """Raise RecipeError if a recipe asks for features that a module does not have, for a tensor of a node.

    They are formula-derived scales, several scales of an activation, and fractional zero points.
    """
    read = None if is_weight else recipe.activation_for(node, "", tensor)
    scheme = recipe.weight_for(node, "", tensor) if read is None else read
    parts = "per_tensor" if read is None else read.granularity
    features = {
        "fractional zero points": scheme.zero_point == "fractional",
        "dynamic scales": read is not None and read.dynamic,
        f"granularity {parts} of activations": parts != "per_tensor",
        f"scale_type {scheme.scale_type}": scheme.scale_type != "float32",
    }
    found = next((name for name, is_asked in features.items() if is_asked), "")
    if found:
        raise RecipeError(
            f"recipe {recipe.name} asks for {found}, which torch modules do not have; quantize the "
            "exported ONNX model with it"
        )


Sites = Mapping[str, tuple[str, Collection[str]]]
"""Name and types of a layer or a call by node."""


def check_overrides(recipe: Recipe, layers: Sequence[Layer], sites: Sites, tensors: Iterable[str]) -> None:
    """Raise RecipeError for names that match no layer, and nothing else that is given."""
    types = {kind for layer in layers for kind in (layer.type_name, *layer.kind.op_types)}
    types |= {kind for _, kinds in sites.values() for kind in kinds}
    names = dict.fromkeys([*(layer.name for layer in layers), *(site for site, _ in sites.values())], "")
    known = {*tensors, *(name for layer in layers for name in layer.tensors)}
    recipe.check_names(names | {kind: kind for kind in types}, known)


def rename_overrides(recipe: Recipe, sites: Sites, tensors: Iterable[tuple[str, str]]) -> Recipe:
    """Return the recipe with overrides that name nodes and tensors as the planner does.

    Args:
        recipe: with overrides in the names of a module.
        sites: name and types of the layer or the call by node.
        tensors: each tensor with its name in the module.
    """
    overrides = []
    named = list(tensors)
    for one in recipe.overrides:
        found = [
            name
            for name, (site, kinds) in sites.items()
            if set(kinds) & set(one.op_types) or any(match_name(pattern, site) for pattern in one.nodes)
        ]
        read = [name for name, own in named if any(match_name(pattern, own) for pattern in one.tensors)]
        if found or read:
            update = {"nodes": tuple(found), "tensors": tuple(read), "op_types": (), "modules": ()}
            overrides.append(one.model_copy(update=update))
    return recipe.model_copy(update={"overrides": tuple(overrides)})

"""`quantize_module` adds fake quantizers to an existing module; `remove_fake_quantize` removes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization.qconfig import QConfig
from torch.ao.quantization.qconfig_mapping import QConfigMapping

from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError
from onnxfq.targets.recipes import load_recipe
from onnxfq.torch.ao_recipe import recipe_of, scale_rule_of
from onnxfq.torch.fused import switch_fused
from onnxfq.torch.insertion import Settings
from onnxfq.torch.layers import Swapped, restore
from onnxfq.torch.quantizer import FakeQuantize, quantizers
from onnxfq.torch.unfinished import PLAN, Unfinished, find_unfinished


def quantize_module(
    model: nn.Module,
    recipe: str | Path | Recipe | Mapping[str, Any] | QConfig | QConfigMapping = "tensorrt-int8",
    *,
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any] | None = None,
    strict: bool = False,
    fold_batchnorm: bool = True,
    observer: str | Callable[..., nn.Module] | None = None,
    **settings: Any,
) -> Plan:
    """Insert fake quantizers into `model`, in place, as `recipe` says, and return the plan with its reasons.

    torch exports the module, and the recipe decides on that graph. Each tensor is quantized where the module
    reads it. Weights of embeddings, Bilinear and recurrent layers and cells are
    quantized if an override of the weights names them, or for target simulation.

    Without example inputs the layers are planned at once, and the operations in forwards with the first batch
    that the module gets; `plan_of` returns the whole plan then. If torch's exporter refuses the
    module, only its layers are quantized, and the plan says why.

    Parameters stay the same objects under the same names. Run data through the model in `compute_encodings`
    next, or train it.

    Args:
        model: the module; it is unchanged if an error is raised.
        recipe: as for `onnxfq.quantize`; the same file places the same quantizers. A QConfig, QConfigMapping
            or qconfig dictionary of torch.ao gives formats for target simulation and its rule of scales.
        example_inputs: what forward takes: a tensor, a tuple, or a dictionary by name.
        strict: whether it is an error if torch's exporter refuses the module.
        fold_batchnorm: fold a BatchNorm right after a convolution into its weight.
        observer: observer of activations, also in `compute_encodings`, in place of the calibrator of the
            recipe. None is the calibrator in `compute_encodings`, which fixes the scales. Without
            `compute_encodings` they follow the data in training mode, by "moving_average:0.01" as in torch.ao
            and Horizon, or by the moving average of the recipe.
        settings: rounding, arithmetic, saturate, scale_rule and in_flight of every `FakeQuantize`; the first
            three override the recipe's `simulation`.

    Raises:
        RecipeError: for overrides that match nothing, with the nearest names, or that the target does not
            accept.
        DataError: for example inputs that forward does not take.
        ModelError: for a model that already has quantizers, or has nothing to quantize.
    """
    if isinstance(model, torch.export.ExportedProgram):
        raise ModelError("quantize_module changes a module in place; pass program.module(), and keep that")
    if not isinstance(recipe, (str, Path, Recipe)):
        asked = recipe_of(recipe, model)
        settings = {"scale_rule": scale_rule_of(recipe), **settings}
    else:
        asked = load_recipe(recipe)
    settings = asked.simulation.changes | settings
    FakeQuantize("int8", "minmax" if observer is None else observer, **settings)  # refuses unknown settings
    if any(isinstance(module, Swapped) for module in model.modules()):
        raise ModelError(f"{type(model).__name__} is quantized already; call remove_fake_quantize first")
    if quantizers(model):
        name = next(iter(quantizers(model)))
        raise ModelError(f"{type(model).__name__} already has a FakeQuantize, {name!r}; remove it first")
    unfinished = Unfinished(model, asked, Settings(observer, fold_batchnorm, settings), strict)
    if example_inputs is None:
        unfinished.wait(model)
    elif isinstance(example_inputs, Mapping):
        unfinished.finish(model, (), dict(example_inputs))
    else:
        single = isinstance(example_inputs, Tensor)
        unfinished.finish(model, (example_inputs,) if single else tuple(example_inputs), {})
    return plan_of(model)


def plan_of(model: nn.Module) -> Plan:
    """Return the plan of a quantized module, with the operations in its forwards once these are planned.

    Raises ModelError for a module without quantizers of `quantize_module`.
    """
    plan: Plan | None = model.__dict__.get(PLAN)
    if plan is None:
        raise ModelError(f"{type(model).__name__} has no plan; call quantize_module with it first")
    return plan


def remove_fake_quantize(model: nn.Module) -> None:
    """Remove everything that `quantize_module` inserted; trained values stay."""
    for unfinished in find_unfinished(model):
        unfinished.leave()
    switch_fused(model, fused=True)
    for module in list(model.modules()):
        restore(module)
    model.__dict__.pop(PLAN, None)

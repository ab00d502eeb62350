"""`quantize_module` adds fake quantizers to an existing module; `remove_fake_quantize` removes them.

BatchNorm is folded into the preceding convolution. The quantizer sees weight * gamma / sqrt(running_var +
eps), the deployed weight. In training the result is divided by the same factor and the usual BatchNorm
follows, with the statistics of the batch. A frozen or exported BatchNorm is part of the convolution: only
weight and bias remain.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", 2018, section 3.2; Krishnamoorthi, "Quantizing deep convolutional networks for efficient
inference".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.ao.quantization.qconfig import QConfig
from torch.ao.quantization.qconfig_mapping import QConfigMapping

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError
from onnxfq.targets.recipes import load_recipe
from onnxfq.torch.ao_recipe import recipe_of, scale_rule_of
from onnxfq.torch.arguments import checked
from onnxfq.torch.attention import SwappedAttention, switch_fused
from onnxfq.torch.fx_ops import FxSite
from onnxfq.torch.fx_trace import Trace, rewrite, successions, trace
from onnxfq.torch.layers import Swapped, restore, swap
from onnxfq.torch.observers import Fixed
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.placement import find_sites, plan_module
from onnxfq.torch.quantizer import FakeQuantize, quantizers
from onnxfq.torch.traced_patterns import attentions, known_range_ops

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SwappedNorm(Swapped):
    """BatchNorm whose factor is folded into the preceding convolution."""

    frozen: bool

    def forward(self, input: Tensor) -> Tensor:  # torch's name: callers may pass it as a keyword
        """Normalise as usual; return the input unchanged if the convolution has done it all."""
        if self.frozen or is_exporting():
            return input
        return super().forward(input)


def is_foldable(layer: nn.Module, norm: nn.Module) -> bool:
    """Tell whether `norm` is a BatchNorm with running statistics that fits after the convolution `layer`."""
    return (
        isinstance(layer, CONVOLUTIONS)
        and isinstance(norm, NORMS)
        and type(norm).forward in [base.forward for base in NORMS]
        and norm.running_var is not None
        and norm.num_features == layer.out_channels
    )


def fold(layer: nn.Module, norm: nn.Module) -> None:
    """Fold `norm` into the swapped convolution `layer`."""
    swap(norm, {}, SwappedNorm)
    norm.__dict__["frozen"] = False
    layer.__dict__["folded_norm"] = norm  # not a child: it already has its place in the model


@checked
def freeze_batchnorm(model: nn.Module, frozen: bool = True) -> None:
    """Make every folded BatchNorm a fixed part of its convolution, or trainable again if not `frozen`."""
    for module in model.modules():
        if isinstance(module, SwappedNorm):
            module.__dict__["frozen"] = frozen


TRAINING_OBSERVER = "moving_average:0.01"
"""Observer of activations in training, as in torch.ao's and Horizon's QAT."""


@checked
def quantize_module(
    model: nn.Module,
    recipe: str | Path | Recipe | Mapping[str, Any] | QConfig | QConfigMapping = "tensorrt-int8",
    *,
    fold_batchnorm: bool = True,
    observer: str | Callable[..., nn.Module] | None = None,
    **settings: Any,
) -> Plan:
    """Insert fake quantizers into `model`, in place, as `recipe` says, and return the plan with its reasons.

    Quantized are:
    - inputs and weights of Linear, convolutions, transposed convolutions and MultiheadAttention, as layers or
      as functions of parameters;
    - both operands of matrix products in a forward, including scaled_dot_product_attention;
    - the skip branch of residual sums, if the target requires it;
    - weights of embeddings, Bilinear and recurrent layers and cells, if an override of the weights names
      them, or for target simulation.

    Parameters stay the same objects under the same names. Run data through the model in `compute_encodings`
    next, or train it.

    Args:
        model: the module; it is unchanged if an error is raised.
        recipe: as for `onnxfq.quantize`; the same file places the same quantizers. A QConfig, QConfigMapping
            or qconfig dictionary of torch.ao gives formats for target simulation and its rule of scales.
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
        ModelError: for a model that already has quantizers, or has nothing to quantize.
    """
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
    traced = cache(trace)  # each module once
    sites = find_sites(model, asked, traced)
    plan = plan_module(model, asked, sites, known_range_ops(model, traced), tuple(attentions(model, traced)))
    pairs = [pair for module in model.modules() for pair in successions(module, traced) if is_foldable(*pair)]
    placed = {placement.tensor: placement for placement in plan.placements}
    device = next((p.device for p in model.parameters()), None)
    for owner in dict.fromkeys(site.owner for site in sites):
        mine = [site for site in sites if site.owner == owner]
        _insert(model.get_submodule(owner), mine, placed, traced, device, observer, settings)
    switch_fused(model, fused=False)
    for layer, norm in pairs if fold_batchnorm else ():
        if isinstance(layer, Swapped):
            fold(layer, norm)
    return plan


def _insert(
    module: nn.Module,
    sites: list[FxSite],
    placed: dict[str, Placement],
    traced: Trace,
    device: object,
    observer: str | Callable[..., nn.Module] | None,
    settings: Mapping[str, Any],
) -> None:
    given: dict[str, FakeQuantize] = {}
    where: dict[str, tuple[str, int]] = {}
    for site in sites:
        for name in (*site.activations, *site.weights):
            placement = placed.get(site.tensor(name))
            if placement is not None and placement.uses[0].node == site.name:
                given[name] = _quantizer(placement, observer, settings).to(device)
                # In self-attention, keys and values are the queries and share one quantizer.
                given[name].may_be_unused = name in ("key", "value")
        where |= site.at
    if not given:
        return
    if where:
        rewrite(traced(module), given, where)
    else:
        swap(module, given, SwappedAttention if isinstance(module, nn.MultiheadAttention) else Swapped)


def _quantizer(
    placement: Placement, asked: str | Callable[..., nn.Module] | None, settings: Mapping[str, Any]
) -> FakeQuantize:
    spec, calibrator = placement.spec, placement.calibrator
    if placement.role == "weight" and calibrator.is_ordered:
        return FakeQuantize(spec, str(calibrator), calibrator=calibrator, training_only=True, **settings)
    if placement.role == "weight":
        return FakeQuantize(spec, "latest", calibrator=calibrator, **settings)
    if calibrator.is_fixed:
        return FakeQuantize(spec, Fixed(spec, calibrator), calibrator=calibrator, **settings)
    if asked is not None:
        return FakeQuantize(spec, asked, training_only=True, **settings)
    # A moving average depends on the order of the tensors, which a histogram does not hold.
    exact = "minmax" if calibrator == MINMAX else str(calibrator) if calibrator.is_ordered else "histogram"
    training = str(calibrator) if calibrator.is_ordered else TRAINING_OBSERVER
    quantizer = FakeQuantize(spec, training, calibrator=calibrator, training_only=True, **settings)
    quantizer.calibrating_observer = exact
    quantizer.is_observing = quantizer.in_flight == "never"
    return quantizer


@checked
def remove_fake_quantize(model: nn.Module) -> None:
    """Remove everything that `quantize_module` inserted; trained values stay."""
    switch_fused(model, fused=True)
    for module in list(model.modules()):
        restore(module)

"""`quantize_module`: fake quantizers into an existing module; `remove_fake_quantize`: out again."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe, load_recipe
from onnxfq.errors import ModelError
from onnxfq.torch.attention import SwappedAttention, switch_fused
from onnxfq.torch.batchnorm import can_fold, fold
from onnxfq.torch.fused_attention import attentions
from onnxfq.torch.layers import Swapped, restore, swap
from onnxfq.torch.placement import Site, Surroundings, find_sites, plan_module
from onnxfq.torch.producers import producers
from onnxfq.torch.quantizer import FakeQuantize, quantizers
from onnxfq.torch.traced import Traces, rewrite, successions


def quantize_module(
    model: nn.Module, recipe: str | Path | Recipe = "tensorrt-int8", *, fold_batchnorm: bool = True
) -> Plan:
    """Put fake quantizers into `model`, in place, as `recipe` asks, and return what was done and why.

    recipe: as for `onnxfq.quantize`; the same file places the same quantizers. Quantized are the inputs and
    weights of Linear, convolutions, transposed convolutions and MultiheadAttention, as layers or as functions
    of parameters, both sides of matrix products in a forward, those of scaled_dot_product_attention too, and
    the skip branch of residual sums where the target wants it; weights of embeddings, Bilinear and recurrent
    layers and cells where an override of the weights names them, or for target simulation.
    Parameters stay the same objects under the same names. fold_batchnorm: a BatchNorm right after a
    convolution becomes part of its weight.

    Run data through the model in `compute_encodings` next. Raises RecipeError for overrides that match
    nothing, with the nearest names, or ask what the target cannot take, ModelError for a model that has
    quantizers already or nothing to quantize; then nothing is changed.
    """
    asked = load_recipe(recipe)
    if any(isinstance(module, Swapped) for module in model.modules()):
        raise ModelError(f"{type(model).__name__} is quantized already; call remove_fake_quantize first")
    if quantizers(model):
        name = next(iter(quantizers(model)))
        raise ModelError(f"{type(model).__name__} has a FakeQuantize of its own, {name!r}; take it out first")
    traces = Traces()
    sites = find_sites(model, asked, traces)
    around = Surroundings(producers(model, traces), tuple(attentions(model, traces)))
    plan = plan_module(model, asked, sites, around)
    pairs = [pair for module in model.modules() for pair in successions(module, traces) if can_fold(*pair)]
    placed = {placement.tensor: placement for placement in plan.placements}
    device = next((p.device for p in model.parameters()), None)
    for owner in dict.fromkeys(site.owner for site in sites):
        mine = [site for site in sites if site.owner == owner]
        _insert(model.get_submodule(owner), mine, placed, traces, device)
    switch_fused(model, fused=False)
    for layer, norm in pairs if fold_batchnorm else ():
        if isinstance(layer, Swapped):
            fold(layer, norm)
    return plan


def _insert(
    module: nn.Module, sites: list[Site], placed: dict[str, Placement], traces: Traces, device: object
) -> None:
    made: dict[str, FakeQuantize] = {}
    where: dict[str, tuple[str, int]] = {}
    for site in sites:
        for name in (*site.activations, *site.weights):
            placement = placed.get(site.tensor(name))
            if placement is not None and placement.uses[0].node == site.name:
                made[name] = _quantizer(placement).to(device)
                # Of self-attention keys and values are the queries, and one quantizer serves them.
                made[name].may_be_unused = name in ("key", "value")
        where |= site.at
    if not made:
        return
    if where:
        rewrite(traces.of(module), made, where)
    else:
        swap(module, made, SwappedAttention if isinstance(module, nn.MultiheadAttention) else Swapped)


def _quantizer(placement: Placement) -> FakeQuantize:
    calibrator = placement.calibrator
    observer = "minmax" if calibrator == MINMAX else "histogram"
    observer = "latest" if placement.role == "weight" else observer
    return FakeQuantize(placement.spec, observer, calibrator=calibrator)


def remove_fake_quantize(model: nn.Module) -> None:
    """Take out all that `quantize_module` put in: the model is what it was, but for what training changed."""
    switch_fused(model, fused=True)
    for module in list(model.modules()):
        restore(module)

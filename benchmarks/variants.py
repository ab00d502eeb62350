"""Ways to quantize a network, the same for all, for `measures.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from real_cases import Feed

import onnxfq
from onnxfq.judging.judge import Judge, Proposal
from onnxfq.remedies.correct_biases import correct_biases
from onnxfq.stages.inputs import embed_weights


class Variant(NamedTuple):
    """One way to quantize.

    activations, weights: what differs from BASE. corrected: whether biases are corrected. kept: the layers in
    float, in the order of the graph. is_free: whether it costs as much at run time as BASE: 8 bits, a
    scale per output channel, and no layer in float.
    """

    activations: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    corrected: bool = False
    kept: slice | None = None
    is_free: bool = False


BASE = {
    "name": "variant",
    "target": "simulation",
    "activations": {"qtype": "int8", "equalize": "depthwise"},
    "weights": {"qtype": "int8", "rounding": "nearest"},
}
"""The usual recipe of 8 bits: best_error for activations, weights per output channel at nearest."""

CROSS = {"equalize": "cross_layer"}
GPTQ, QRONOS = {"rounding": "gptq"}, {"rounding": "qronos"}


def free(
    activations: dict[str, Any] | None = None,
    weights: dict[str, Any] | None = None,
    corrected: bool = False,
) -> Variant:
    """Return a variant that costs as much at run time as BASE."""
    return Variant(activations or {}, weights or {}, corrected, is_free=True)


VARIANTS = {
    "default": free(),
    "minmax": free({"calibrator": "minmax"}),
    "percentile": free({"calibrator": "percentile"}),
    "entropy": free({"calibrator": "entropy"}),
    "mse": free({"calibrator": "mse"}),
    "sqnr": free({"calibrator": "sqnr"}),
    "weights by mse": free(weights={"calibrator": "mse"}),
    "biases": free(corrected=True),
    "gptq": free(weights=GPTQ),
    "qronos": free(weights=QRONOS),
    "cross-layer": free(CROSS),
    "cross-layer, minmax": free(CROSS | {"calibrator": "minmax"}),
    "cross-layer, qronos": free(CROSS, QRONOS),
    "percentile, gptq": free({"calibrator": "percentile"}, GPTQ),
    "entropy, biases": free({"calibrator": "entropy"}, corrected=True),
    "per tensor": Variant(weights={"granularity": "per_tensor"}),
    "per tensor, cross-layer": Variant(CROSS, {"granularity": "per_tensor"}),
    "int6 weights": Variant(weights={"qtype": "int6"}),
    "int4 weights": Variant(weights={"qtype": "int4"}),
    "int4 weights, qronos": Variant(weights={"qtype": "int4"} | QRONOS),
    "int6 activations": Variant({"qtype": "int6"}),
    "first layer in float": Variant(kept=slice(1)),
    "last layer in float": Variant(kept=slice(-1, None)),
    "every third layer in float": Variant(kept=slice(None, None, 3)),
}
"""The variants by name; the first one is the base of gains."""


def make_recipe(variant: Variant, layers: Sequence[str]) -> onnxfq.Recipe:
    """Return the recipe of a variant of a model with `layers`."""
    recipe = onnxfq.Recipe.model_validate(BASE)
    recipe = recipe.override(activations=variant.activations, weights=variant.weights)
    if variant.kept is None:
        return recipe
    return recipe.override(overrides=[{"nodes": layers[variant.kept], "keep_float": True}])


def quantize(model: Path, feeds: Sequence[Feed], variant: Variant) -> onnx.ModelProto:
    """Return the fake-quant model of a variant. Raises OnnxfqError if it is refused."""
    options = onnxfq.QuantizeOptions(threads=1)
    layers: list[str] = []
    if variant.kept is not None:
        plan = onnxfq.make_plan(onnxfq.load(model), onnxfq.Recipe.model_validate(BASE))
        layers = list(dict.fromkeys(use.node for placed in plan.weights for use in placed.uses))
    result = onnxfq.quantize(
        model,
        list(feeds),
        recipe=make_recipe(variant, layers),
        accuracy=onnxfq.AccuracyTarget(repair=None),
        options=options,
    )
    if not variant.corrected:
        return result.simulation
    assert result.candidate is not None
    corrected = correct_biases(result.candidate, Judge(result.candidate, options, onnxfq.Sources()))
    if isinstance(corrected, Proposal):
        return embed_weights(result.staged, corrected.candidate.simulate())
    raise onnxfq.errors.ModelError(f"no bias can be corrected: {corrected.why}; leave the variant out")

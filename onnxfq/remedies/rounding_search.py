"""Rounding `auto`: weights are rounded by moments where the measured outputs tell that they make the noise.

At 8 bits activations usually make most of it, and the nearest weights are as good as others at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import AUTO
from onnxfq.documents.scores import Evaluation
from onnxfq.graph.model import Model, list_graphs
from onnxfq.remedies.equalize import LEAST_GAIN_DB
from onnxfq.remedies.mixed_precision import Protected
from onnxfq.remedies.round_weights import round_given
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.options import RunOptions
from onnxfq.stages.planned_encodings import plan_encodings
from onnxfq.stages.score import SURE_FEEDS, score_models

METHOD = "gptq"
"""Rounding that takes the place of `auto`."""

NONE_ROUNDED = f"{METHOD} rounds none of them"
"""Reason of weights that all lie where METHOD cannot round them."""

LEAST_SHARE = 0.5
"""Share of an output's noise that weights make, from which on better weights can gain 3 dB."""

HELD_OUT = SURE_FEEDS
"""Most samples that confirm the gain and give no moments; at most half of those that are kept."""

MOST_MULTIPLIES = 1 << 38
"""Multiply-adds of rounding that `quantize` does unasked: three seconds on two cores."""

LEAST_MULTIPLIES = 1 << 29
"""Multiply-adds in the 8 ms that even a small weight takes: a graph of 2,500 small layers took 20 s."""


@dataclass(frozen=True)
class AutoRounding:
    """Gain of METHOD over the nearest weights.

    Attributes:
        shares: the outputs of whose noise weights make LEAST_SHARE or more, with that share; above 1 if the
            noise of activations makes up for a part of it.
        before: SQNR in dB by output with the nearest weights, on feeds that gave no moments.
        reached: the same with METHOD; both are empty if it rounded no weight.
        why: reason not to round any weight.
    """

    shares: Mapping[str, float]
    before: Mapping[str, float] = field(default_factory=dict)
    reached: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether these outputs gain LEAST_GAIN_DB on average, and the worst of all outputs loses nothing."""
        gains = [self.reached[name] - self.before[name] for name in self.shares if name in self.reached]
        if not gains:
            return False
        lowest = min(self.reached.values()) >= min(self.before.values())
        return bool(lowest and np.mean(gains) >= LEAST_GAIN_DB)

    def lines(self) -> list[str]:
        """Return a line of the summary for each of these outputs."""
        end = "" if self.is_kept else "; all weights stay at nearest"
        gains = {n: f"{METHOD} {self.before[n]:.1f} -> {self.reached[n]:.1f} dB" for n in self.reached}
        return [
            f"rounding   auto: weights make {min(share, 1.0):.0%} of the noise of {name!r}; "
            f"{self.why or gains.get(name, 'it was not compared')}{end}"
            for name, share in self.shares.items()
        ]


def find_noisy_outputs(recipe: Recipe, evaluation: Evaluation) -> dict[str, float]:
    """Return the outputs of whose noise weights make LEAST_SHARE, if `recipe` rounds some by `auto`."""
    schemes = ({"rounding": recipe.weights.rounding}, *(one.weights for one in recipe.overrides))
    if not any(fields.get("rounding") == AUTO for fields in schemes):
        return {}
    shares = {
        score.output: one.weight_shares[score.output]
        for one in evaluation.candidates[:1]
        for score in one.judging
        if score.output in one.weight_shares
    }
    return {name: share for name, share in shares.items() if share >= LEAST_SHARE}


def find_obstacle(model: Model, plan: Plan) -> str:
    """Return the reason not to round the weights of `plan` unasked; empty without one."""
    dims = {t.name: tuple(t.dims) for graph in list_graphs(model.proto.graph) for t in graph.initializer}
    multiplies = sum(_multiplies(dims[p.tensor], p) for p in plan.weights if p.tensor in dims)
    if multiplies <= MOST_MULTIPLIES:
        return ""
    return f"--rounding {METHOD} can reduce it, in {multiplies / 1e12:.1f} T multiply-adds"


def _multiplies(shape: Sequence[int], weight: Placement) -> int:
    """Return the work of rounding a weight in multiply-adds: moments, inverse, decomposition, handling."""
    outputs = shape[weight.spec.granularity.axis or 0] if weight.spec.granularity.block_size is None else 1
    size = math.prod(shape)
    inputs = size // max(outputs, 1) if outputs > 1 else max(shape, default=0)
    return LEAST_MULTIPLIES + 6 * inputs**3 + size * inputs


def round_auto(
    inputs: QuantizeSession, start: Protected, options: RunOptions, ray: str | None = None
) -> Protected:
    """Return the plan of `start` with METHOD in place of `auto`, and its weights rounded.

    The samples of `confirm_rounding` give no moments. Raises as `round_given`.
    """
    recipe = _in_place_of_auto(start.recipe)
    planned = plan_encodings(inputs.ranked, recipe)
    made = Protected.of(inputs.model, recipe, planned, start.statistics, start.encodings.encodings)
    rounding = round_given(
        inputs, made.plan, made.encodings, options, ray=ray, held_out=len(_confirming(inputs))
    )
    return made.rounded(rounding)._replace(sensitivity=start.sensitivity)


def _in_place_of_auto(recipe: Recipe) -> Recipe:
    """Return `recipe` with METHOD where its rounding is `auto`."""

    def choose(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"rounding": METHOD} if fields.get("rounding") == AUTO else fields

    return recipe.override(
        weights=choose({"rounding": recipe.weights.rounding}),
        overrides=tuple(
            override.model_copy(update={"weights": choose(override.weights)}) for override in recipe.overrides
        ),
    )


def confirm_rounding(
    inputs: QuantizeSession,
    shares: Mapping[str, float],
    nearest: onnx.ModelProto,
    rounded: onnx.ModelProto,
    options: RunOptions,
) -> AutoRounding:
    """Return what the fake-quant model `rounded` gains over `nearest` on feeds that gave no moments."""
    found = score_models(
        inputs.reference,
        {"nearest": nearest, METHOD: rounded},
        _confirming(inputs),
        threads=options.threads,
        device=options.device,
        exact=options.exact,
        judged=inputs.judged,
    )
    before, reached = ({one.output: one.sqnr_db for one in each.judging} for each in found.candidates)
    return AutoRounding(shares, before, reached)


def _confirming(inputs: QuantizeSession) -> list[Feed]:
    """Return the first of the samples that are compared, at most half of all that are kept."""
    return inputs.kept[: min(HELD_OUT, len(inputs.kept) // 2)]

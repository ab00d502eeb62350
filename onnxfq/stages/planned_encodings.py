"""Sources of encodings: statistics and weights, overridden by a file of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxfq.calibration.statistics import Statistics
from onnxfq.choices import Uncalibrated
from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import PlanError, RecipeError
from onnxfq.graph.model import Model
from onnxfq.interchange import ExternalEncodingsFile, read_given
from onnxfq.interchange.apply import MatchedEncodings, fit
from onnxfq.interchange.external import ExternalEncodings
from onnxfq.interchange.recipe_overrides import recipe_with
from onnxfq.stages.calibrate import Calibrated, calibrate_plan
from onnxfq.stages.derived_scales import encode_biases
from onnxfq.stages.plan import make_plan
from onnxfq.targets.target import prepare_model


@dataclass(frozen=True)
class PlannedEncodings:
    """A plan and the external encodings for it.

    Attributes:
        plan: the plan.
        matched: the encodings of the file that match the plan; None without a file.
    """

    plan: Plan
    matched: MatchedEncodings | None = None

    @property
    def own(self) -> dict[str, Encoding]:
        """The encodings of the file by tensor."""
        return {} if self.matched is None else {e.tensor: e for e in self.matched.encodings}

    @property
    def unknown(self) -> Plan:
        """The part of the plan without values in the file; biases follow from the rest."""
        own = self.own
        placements = tuple(p for p in self.plan.placements if p.tensor not in own and p.role != "bias")
        # The file has the scales of all tensors of a bridge, see `_with_given_bridges`.
        bridges = () if own else self.plan.bridges
        return self.plan.model_copy(update={"placements": placements, "bridges": bridges})

    def lines(self) -> list[str]:
        """Return a summary of the file for the user: used encodings, and every unused name."""
        return [] if self.matched is None else self.matched.lines()

    def refuse_missing(self, remedy: str) -> None:
        """Raise PlanError if activations need values that the file lacks; `remedy` ends the message."""
        if self.matched is not None:
            self.matched.refuse_missing(remedy)

    def without_uncalibrated(self, uncalibrated: Uncalibrated) -> PlannedEncodings:
        """Return this for a run without data or statistics: tensors that the file lacks stay in float.

        Raises PlanError if `uncalibrated` is "error" and the file lacks something, or if nothing is left to
        quantize.
        """
        if self.matched is None or not self.matched.missing:
            return self
        if uncalibrated == "error":
            self.refuse_missing(
                "give data to calibrate them, or --uncalibrated float to leave their nodes in float"
            )
        given = self.matched.given
        part = self.plan.without(self.matched.missing, f"{given.kind} has no scale for it")
        if not part.placements:
            raise PlanError(
                f"nothing to quantize: every node needs an activation that {given.source} has no scale for; "
                "give data to calibrate them"
            )
        return PlannedEncodings(part, self.matched)

    def encode(
        self,
        model: Model,
        statistics: Statistics,
        calibrator: str | None = None,
        weights: Sequence[Encoding] | None = None,
    ) -> Calibrated:
        """Return the plan with its encodings, in the order of `calibrate`.

        Encodings of the file are used unchanged; `calibrate_plan` chooses the others and raises its errors.
        `weights` are for plans without a file.
        """
        if self.matched is None:
            return calibrate_plan(model, self.plan, statistics, calibrator, weights)
        unknown = self.unknown
        plan, made = Calibrated.of(
            self.plan, calibrate_plan(model, unknown, statistics, calibrator).encodings
        )
        known = self.own | {encoding.tensor: encoding for encoding in made.encodings}
        known |= {one.tensor: one for one in encode_biases(model, plan, known.values())}
        whole = self.plan
        placed = *whole.activations, *whole.unobserved, *whole.weights, *whole.biases
        ordered = tuple(known[p.tensor] for p in placed if p.tensor in known)
        changes: dict[str, Any] = {"encodings": ordered, "source": self.matched.given.kind}
        if not unknown.activations:
            changes |= {"statistics_sha256": "", "data_sha256": ""}
        return Calibrated(plan, made.model_copy(update=changes))


def plan_encodings(
    model: Model, recipe: Recipe, file: ExternalEncodingsFile | ExternalEncodings | None = None
) -> PlannedEncodings:
    """Plan `model` in the formats of `file`, the rest by `recipe`.

    Args:
        model: the normalised float model.
        recipe: what is quantized and how.
        file: encodings of another tool: a path, or a dictionary of onnxruntime's overrides.

    Raises:
        RecipeError: for a format that the target of the recipe does not take.
        PlanError: for a file of unknown format, or scales that do not fit their tensor.
    """
    if file is None:
        return PlannedEncodings(make_plan(model, recipe))
    given = file if isinstance(file, ExternalEncodings) else read_given(file)
    model = prepare_model(model, recipe.target)
    chosen = recipe_with(given, recipe, model)
    try:
        plan = make_plan(model, chosen, strict=False)
    except RecipeError as fault:
        make_plan(model, recipe)  # faults of the recipe itself are reported first
        raise RecipeError(
            f"{fault} where {given.source} was made, or another recipe than {recipe.name}"
        ) from None
    plan = _with_given_bridges(plan, given)
    return PlannedEncodings(plan, fit(given, plan, model))


def match_encodings(model: Model, plan: Plan, file: ExternalEncodingsFile | None) -> PlannedEncodings:
    """Return `plan` with the encodings of `file` for it. Raises PlanError as `plan_encodings`."""
    if file is None:
        return PlannedEncodings(plan)
    given = read_given(file)
    plan = _with_given_bridges(plan, given)
    return PlannedEncodings(plan, fit(given, plan, prepare_model(model, plan.target)))


def _with_given_bridges(plan: Plan, given: ExternalEncodings) -> Plan:
    """Return `plan` without the bridges that `given` has no scales for: its scales are used as they are."""
    apart = [
        bridge.node for bridge in plan.bridges if not all(name in given.tensors for name in bridge.tensors)
    ]
    return plan.without_bridges(apart, f"{given.kind} has no scale for some of its tensors")

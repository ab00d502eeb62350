"""Where encodings come from: statistics and weights, or a file of another tool before both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import PlanError, RecipeError
from onnxfq.graph.model import Model
from onnxfq.interchange import GivenFile, read_given
from onnxfq.interchange.apply import Fitted, fit
from onnxfq.interchange.external import Given
from onnxfq.interchange.recipe_overrides import recipe_with
from onnxfq.stages.calibrate import calibrate, calibrated_part
from onnxfq.stages.plan import make_plan

Missing = Literal["stop", "float"]
"""What is done with activations that a file of encodings lacks, and no data is given for."""


@dataclass(frozen=True)
class PlannedEncodings:
    """A plan and what a file has for it.

    Attributes:
        plan: the plan.
        matched: the encodings that the file has for it; None where there is no file.
    """

    plan: Plan
    matched: Fitted | None = None

    @property
    def own(self) -> dict[str, Encoding]:
        """The encodings of the file by tensor."""
        return {} if self.matched is None else {e.tensor: e for e in self.matched.encodings}

    @property
    def unknown(self) -> Plan:
        """The part of the plan that the file has no values for."""
        placements = tuple(p for p in self.plan.placements if p.tensor not in self.own)
        return self.plan.model_copy(update={"placements": placements})

    def lines(self) -> list[str]:
        """Return what a person has to know of the file: what is used, and every name that is not."""
        return [] if self.matched is None else self.matched.lines()

    def refuse_missing(self, remedy: str) -> None:
        """Raise PlanError when activations need values that the file lacks."""
        if self.matched is not None:
            self.matched.refuse_missing(remedy)

    def without_missing(self, missing: Missing) -> PlannedEncodings:
        """Return this for a run without data or statistics: what the file lacks stays in float.

        Raises PlanError when `missing` is "stop" and the file lacks something, or nothing else is left.
        """
        if self.matched is None or not self.matched.missing:
            return self
        if missing == "stop":
            self.refuse_missing(
                "give data to calibrate them, or --missing float to leave what needs them in float"
            )
        given = self.matched.given
        part = self.plan.without(self.matched.missing, f"{given.kind} has no scale for it")
        if not part.placements:
            raise PlanError(
                f"every node needs an activation that {given.source} has no scale for, and nothing is "
                "left to quantize; give data to calibrate them"
            )
        return PlannedEncodings(part, self.matched)

    def encode(
        self, model: Model, statistics: Statistics, calibrator: str | None = None
    ) -> tuple[Plan, Encodings]:
        """Return the plan that is really encoded, and its encodings in the order of `calibrate`.

        Encodings of the file are taken as they are, the others are made by `calibrate`, whose errors are
        raised. The plan lacks activations that no run gave a value.
        """
        made = calibrate(model, self.unknown, statistics, calibrator)
        if self.matched is not None:
            known = self.own | {encoding.tensor: encoding for encoding in made.encodings}
            ordered = (p.tensor for p in (*self.plan.activations, *self.plan.unobserved, *self.plan.weights))
            observed = bool(self.unknown.activations)
            made = made.model_copy(
                update={
                    "encodings": tuple(known[tensor] for tensor in ordered if tensor in known),
                    "source": self.matched.given.kind,
                    "statistics_sha256": made.statistics_sha256 if observed else "",
                    "data_sha256": made.data_sha256 if observed else "",
                }
            )
        return calibrated_part(self.plan, made.without_values), made


def plan_encodings(model: Model, recipe: Recipe, file: GivenFile | Given | None = None) -> PlannedEncodings:
    """Plan `model` in the formats that `file` has, the rest by `recipe`.

    Args:
        model: the normalised float model.
        recipe: what is quantized and how.
        file: encodings of another tool: a path, or a dictionary of onnxruntime's overrides.

    Raises:
        RecipeError: for a format that the target of the recipe does not take.
        PlanError: for a file of no known format, or scales that do not fit their tensor.
    """
    if file is None:
        return PlannedEncodings(make_plan(model, recipe))
    given = file if isinstance(file, Given) else read_given(file)
    chosen = recipe_with(given, recipe, model)
    try:
        plan = make_plan(model, chosen)
    except RecipeError as fault:
        make_plan(model, recipe)  # what is wrong with the recipe itself is said as ever
        raise RecipeError(
            f"{fault} where {given.source} was made, or another recipe than {recipe.name}"
        ) from None
    return PlannedEncodings(plan, fit(given, plan, model))


def match_encodings(model: Model, plan: Plan, file: GivenFile | None) -> PlannedEncodings:
    """Return `plan` with what `file` has for it. Raises PlanError as `plan_encodings`."""
    return PlannedEncodings(plan, None if file is None else fit(read_given(file), plan, model))

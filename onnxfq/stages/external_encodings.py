"""Encodings that a file of another tool gives, in place of those that calibration makes."""

from __future__ import annotations

from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import PlanError, RecipeError
from onnxfq.graph.model import Model
from onnxfq.interchange.apply import Fitted, fit
from onnxfq.interchange.external import Given
from onnxfq.interchange.recipe_overrides import recipe_with
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.derived_scales import encode_biases
from onnxfq.stages.plan import make_plan
from onnxfq.targets.registry import prepare_model


def planned_with(given: Given | None, model: Model, recipe: Recipe) -> tuple[Plan, Fitted | None]:
    """Return the plan, in the formats of `given`, and what `given` has for it.

    Raises RecipeError for a format that the target of the recipe does not take, and as `fit`.
    """
    if given is None:
        return make_plan(model, recipe), None
    model = prepare_model(model, recipe.target)
    chosen = recipe_with(given, recipe, model)
    try:
        plan = make_plan(model, chosen)
    except RecipeError as fault:
        make_plan(model, recipe)  # what is wrong with the recipe itself is said as ever
        raise RecipeError(
            f"{fault} where {given.source} was made, or another recipe than {recipe.name}"
        ) from None
    return plan, fit(given, plan, model)


def calibrate_with(
    given: Given | None,
    model: Model,
    plan: Plan,
    statistics: Statistics | None,
    calibrator: str | None = None,
) -> tuple[Encodings, Fitted | None]:
    """Return the encodings of `plan` and what `given` had for it.

    statistics: None where `given` holds every activation; PlanError otherwise.
    """
    model = prepare_model(model, plan.target)
    fitted = None if given is None else fit(given, plan, model)
    if statistics is None and fitted is not None:
        fitted.refuse_missing("give statistics from `onnxfq observe` with this plan")
    found = statistics or Statistics(model.sha256, 0, {})
    if fitted is None:
        return calibrate(model, plan, found, calibrator), None
    return calibrate_rest(model, plan, fitted, found, calibrator), fitted


def calibrate_rest(
    model: Model, plan: Plan, fitted: Fitted, statistics: Statistics, calibrator: str | None = None
) -> Encodings:
    """Return the encodings that a file gave as they are, and the others as `calibrate` makes them.

    In the order of `calibrate`. Activations that the file lacks need statistics, and where it lacks none the
    encodings come from none. Raises as `calibrate`.
    """
    given = {encoding.tensor: encoding for encoding in fitted.encodings}
    rest = rest_of(plan, fitted)
    made = calibrate(model, rest, statistics, calibrator)
    known = given | {encoding.tensor: encoding for encoding in made.encodings}
    known |= {encoding.tensor: encoding for encoding in encode_biases(model, plan, known.values())}
    ordered = (p.tensor for p in (*plan.activations, *plan.unobserved, *plan.weights, *plan.biases))
    return made.model_copy(
        update={
            "encodings": tuple(known[tensor] for tensor in ordered if tensor in known),
            "source": fitted.given.kind,
            "statistics_sha256": made.statistics_sha256 if rest.activations else "",
            "data_sha256": made.data_sha256 if rest.activations else "",
        }
    )


def rest_of(plan: Plan, fitted: Fitted) -> Plan:
    """Return the part of `plan` that the file has no values for, without biases: their scales are derived."""
    known = {encoding.tensor for encoding in fitted.encodings} | {bias.tensor for bias in plan.biases}
    return plan.model_copy(update={"placements": tuple(p for p in plan.placements if p.tensor not in known)})


def left_in_float(plan: Plan, fitted: Fitted) -> Plan:
    """Return `plan` with activations that the file has no values for in float, and what needs them.

    Raises PlanError when nothing else is left.
    """
    if not fitted.missing:
        return plan
    part = plan.without(fitted.missing, f"{fitted.given.kind} has no scale for it")
    if not part.placements:
        raise PlanError(
            f"every node needs an activation that {fitted.given.source} has no scale for, and nothing is "
            "left to quantize; give data to calibrate them"
        )
    return part

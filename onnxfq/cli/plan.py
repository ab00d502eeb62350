"""`onnxfq plan`: decide what is quantized, how, and why the rest is not."""

from __future__ import annotations

from onnxfq.cli.console import say
from onnxfq.cli.options import (
    EqualizeOption,
    KeepOption,
    ModelArgument,
    OutputOption,
    QuietOption,
    RecipeOption,
    RequantizeOption,
    asked_recipe,
)
from onnxfq.files import check_output
from onnxfq.graph.load import load
from onnxfq.planning import make_plan
from onnxfq.recipe import DEFAULT_RECIPE
from onnxfq.reporting.text import plan_summary


def plan(
    model: ModelArgument,
    output: OutputOption,
    recipe: RecipeOption = DEFAULT_RECIPE,
    equalize: EqualizeOption = None,
    keep_existing: KeepOption = False,
    requantize: RequantizeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a plan: a JSON file that a person can read, edit and feed back."""
    check_output(output, model)
    chosen = asked_recipe(recipe, keep_existing, requantize, equalize)
    loaded = load(model, chosen.existing)
    made = make_plan(loaded, chosen)
    made.save(output)
    for note in loaded.notes:
        say(f"note       {note}", quiet)
    say(plan_summary(made), quiet)
    say(f"wrote      {output}", quiet)

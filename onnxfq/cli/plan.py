"""`onnxfq plan`: decide what is quantized, how, and why the rest is not."""

from __future__ import annotations

from onnxfq.cli.console import say
from onnxfq.cli.options import ModelArgument, OutputOption, QuietOption, RecipeOption
from onnxfq.files import check_writable
from onnxfq.graph.load import load
from onnxfq.graph.save import refuse_overwriting_input
from onnxfq.planning import make_plan
from onnxfq.recipe import DEFAULT_RECIPE, load_recipe
from onnxfq.reporting.text import plan_summary


def plan(
    model: ModelArgument,
    output: OutputOption,
    recipe: RecipeOption = DEFAULT_RECIPE,
    quiet: QuietOption = False,
) -> None:
    """Write a plan: a JSON file that a person can read, edit and feed back."""
    refuse_overwriting_input(output, model)
    check_writable(output)
    loaded = load(model)
    made = make_plan(loaded, load_recipe(recipe))
    made.save(output)
    for note in loaded.notes:
        say(f"note       {note}", quiet)
    say(plan_summary(made), quiet)
    say(f"wrote      {output}", quiet)

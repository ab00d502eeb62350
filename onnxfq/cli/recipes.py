"""`onnxfq recipes`: the built-in recipes, and the schema of recipe files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from onnxfq.cli.build_options import GpuOption, note_gpus
from onnxfq.cli.console import PrintingAll
from onnxfq.cli.option import argument, flag
from onnxfq.cli.streams import show

if TYPE_CHECKING:
    from onnxfq.documents.recipe import Recipe
    from onnxfq.documents.schemes import ActivationScheme, WeightScheme


def recipes(
    name: Annotated[str | None, argument("[NAME]", "Print this recipe or recipe file.")] = None,
    schema: Annotated[bool, flag("Print the JSON schema of recipe files, for editors.", "--schema")] = False,
    gpu: GpuOption = None,
    *,
    printer: PrintingAll,
) -> None:
    """The YAML of a recipe is there to edit and to give to --recipe."""
    import yaml

    from onnxfq.support.tables import table_lines
    from onnxfq.targets.recipe_schema import recipe_schema
    from onnxfq.targets.recipes import RECIPES, load_recipe

    if schema:
        show(json.dumps(recipe_schema(), indent=2))
    elif name is not None:
        fields = load_recipe(name).model_dump(mode="json")
        # Its lines are a file's: none is broken for the terminal.
        printer.report(fields) if printer.as_json else show(yaml.safe_dump(fields, sort_keys=False).rstrip())
    else:
        rows = [["recipe", "target", "activations", "weights", *(["runs there"] if gpu else [])]]
        for one, recipe in RECIPES.items():
            row = [one, recipe.target, _describe(recipe.activations), _describe(recipe.weights)]
            rows.append([*row, *([_judge(recipe, gpu)] if gpu else [])])
        note_gpus(gpu, printer)
        printer.report(RECIPES, *table_lines(rows))


def _judge(recipe: Recipe, gpus: list[str]) -> str:
    """Return yes, no or unknown; nothing for a target without GPUs."""
    from onnxfq.targets.target import target_by_name

    hardware = target_by_name(recipe.target).hardware
    known = {True: "yes", False: "no", None: "unknown"}
    return "" if hardware is None else known[hardware.judge(recipe, gpus)]


def _describe(scheme: ActivationScheme | WeightScheme | None) -> str:
    """Return type, blocks and the kind of scale of a scheme in a few words."""
    from onnxfq.documents.schemes import ActivationScheme

    if scheme is None:
        return "float"
    words = [str(scheme.qtype)]
    words += [f"blocks of {scheme.block_size}"] if scheme.block_size else []
    words += ["dynamic"] if isinstance(scheme, ActivationScheme) and scheme.dynamic else []
    return ", ".join(words)

"""The built-in and registered recipes by name, and recipe files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.documents.override import apply_changes
from onnxfq.documents.recipe import Recipe, merge_fields
from onnxfq.documents.schemes import ActivationScheme, WeightScheme
from onnxfq.errors import ArgumentError, RecipeError, nearest
from onnxfq.support.records import parse, read_content

RECIPES: dict[str, Recipe] = {}
"""Recipes by name, filled by `register_target`."""


def make_recipe(
    name: str,
    target: str,
    activations: dict[str, Any] | None,
    weights: dict[str, Any] | None = None,
    **choices: str | int,
) -> Recipe:
    """Return a recipe of `target`. Without `weights` these are int8, a scale per output channel."""
    schemes = {"activations": activations, "weights": weights or {"qtype": "int8"}}
    return Recipe.model_validate({"name": name, "target": target, **schemes, **choices})


def make_block_recipe(name: str, target: str, qtype: str, scale_type: str, **choices: str | int) -> Recipe:
    """Return a recipe of OCP MX or NVFP4: weights and activations in blocks, each with a small scale.

    Scales of MX are the formula's. NVFP4 weights take the scales of least squared error.
    """
    scheme = {"qtype": qtype, "scale_type": scale_type, "granularity": "blocked"}
    weights = {"calibrator": "mse"} if scale_type == "e4m3" else {}
    return make_recipe(name, target, scheme | {"dynamic": True}, scheme | weights, **choices)


def load_recipe(recipe: str | Path | Recipe) -> Recipe:
    """Return a recipe by name, from a YAML or JSON file, or as given.

    A name without a target, such as `int8`, means `tensorrt-int8` unless a recipe has that name.
    A file has the fields of `Recipe`; with `base: NAME` it starts from that recipe and lists only the
    differences. Raises RecipeError in one line: unknown name (with the nearest), bad field, bad YAML.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str | os.PathLike):
        raise ArgumentError(f"the recipe is a {type(recipe).__name__}; give a name, a .yaml file or a Recipe")
    for name in (str(recipe), f"tensorrt-{recipe}"):
        if name in RECIPES:
            return RECIPES[name]
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml", ".json"):
        return _from_file(path)
    hint = nearest(str(recipe), RECIPES) or f"; known: {', '.join(sorted(RECIPES))}"
    hint = "; give each of several by itself" if "," in str(recipe) else hint
    raise RecipeError(f"unknown recipe {str(recipe)!r}: give a built-in name or a .yaml file{hint}")


def find_wider(recipe: Recipe) -> str:
    """Return the name of the recipe in float8 for the target of one with fewer bits; empty for none."""
    scheme, target = recipe.activations, recipe.target
    name = f"{target}-fp8"
    return name if scheme is not None and scheme.qtype.bits < 8 and name in RECIPES else ""


def name_dataless(target: str) -> str:
    """Return `, as onnxruntime-uint8-dynamic`: the recipes of a target that observe nothing; "" for none."""
    of_target = {name: recipe.activations for name, recipe in RECIPES.items() if recipe.target == target}
    # A scale of e4m3 has a global one, which is observed.
    names = [n for n, one in of_target.items() if one is None or (one.dynamic and one.scale_type != "e4m3")]
    return f", as {', '.join(names)}" if names else ""


class _Document(Recipe):
    """A recipe file: a recipe, and the one that it starts from."""

    base: str


def _from_file(path: Path) -> Recipe:
    given = read_content(path, RecipeError)
    if not isinstance(given, dict):
        parse(given, _Document, RecipeError, str(path))
    base = _find_base(given.get("base", DEFAULT_RECIPE), str(path))
    fields: dict[str, Any] = {"name": path.stem, "base": base.name}
    for name, value in given.items():
        if name in ("activations", "weights", "cache") or value not in (None, ""):
            fields[name] = value
    if isinstance(given.get("overrides"), list):
        fields["overrides"] = [_with_schemes(one, str(path)) for one in given["overrides"]]
    content = merge_fields(base, fields)
    document = parse(content, _Document, RecipeError, str(path))
    for number, override in enumerate(document.overrides):
        source = f"{path}: overrides.{number}"
        activations = apply_changes(content["activations"], override.activations)
        if activations:
            parse(activations, ActivationScheme, RecipeError, f"{source}.activations")
        parse(content["weights"] | override.weights, WeightScheme, RecipeError, f"{source}.weights")
    return Recipe(**{name: getattr(document, name) for name in Recipe.model_fields})


def _find_base(name: Any, path: str) -> Recipe:
    if not isinstance(name, str) or name not in RECIPES:
        raise RecipeError(f"{path}: unknown base {name!r}{nearest(str(name), RECIPES)}")
    return RECIPES[name]


def _with_schemes(override: Any, path: str) -> Any:
    """Return an override of a file, with the schemes of its `base` below its own changes."""
    if not isinstance(override, dict) or "base" not in override:
        return override
    schemes = _find_base(override["base"], path).model_dump(mode="json", include={"activations", "weights"})
    changes = {name: value for name, value in override.items() if name != "base"}
    return changes | {name: apply_changes(one, changes.get(name, {})) for name, one in schemes.items()}

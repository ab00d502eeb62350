"""Registry of targets by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from onnxfq.choices import DEFAULT_TARGET as DEFAULT_TARGET
from onnxfq.documents.recipe import RECIPES
from onnxfq.errors import RecipeError, nearest
from onnxfq.graph.model import Model
from onnxfq.runtime.unsupported_ops import FOREIGN_DOMAINS
from onnxfq.targets.target import Target

Part = TypeVar("Part")

TARGETS: dict[str, Target] = {}
"""Targets by name, filled by `register_target`."""


def register_target(target: Target) -> None:
    """Register `target` and its recipes by name in this process.

    Args:
        target: the record; its name and the names of its recipes must be unique.

    Raises RecipeError if another record has one of the names.
    """
    if TARGETS.get(target.name, target) != target:
        raise RecipeError(f"another target is called {target.name!r}; choose another name")
    for recipe in target.recipes:
        if RECIPES.setdefault(recipe.name, recipe) != recipe:
            raise RecipeError(f"another recipe is called {recipe.name!r}; choose another name")
    TARGETS[target.name] = target
    FOREIGN_DOMAINS.update(target.domains)


def target_by_name(name: str) -> Target:
    """Return the target called `name`.

    Raises RecipeError with the nearest names if it is not registered.
    """
    if name in TARGETS:
        return TARGETS[name]
    hint = nearest(name, TARGETS) or f"; known: {', '.join(TARGETS)}"
    raise RecipeError(f"unknown target {name!r}: give a registered one{hint}")


def collect_parts(part: Callable[[Target], Part | None]) -> dict[str, Part]:
    """Return what `part` takes from each registered target, by name, without targets that lack it."""
    return {name: found for name, target in TARGETS.items() if (found := part(target))}


def prepare_model(model: Model, target: str) -> Model:
    """Return `model` with the rewrites that `target` needs before placement; computed once.

    Raises RecipeError for an unknown target.
    """
    wanted = target_by_name(target)
    if target not in model.prepared:
        made = wanted.prepare(model)
        model.prepared[target] = None if made is model else made
        made.prepared.setdefault(target, None)
    return model.prepared[target] or model

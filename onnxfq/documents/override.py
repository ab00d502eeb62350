"""`Override`: a change of a recipe for some tensors or nodes."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import pydantic

from onnxfq.errors import RecipeError
from onnxfq.support.records import Record


class Override(Record):
    """A change for matching tensors or nodes: by name or glob, or nodes by op type.

    Attributes:
        modules: paths of torch modules, or globs, for models of torch's exporter and for torch modules; a
            module stands for all nodes inside it.
        keep_float: leaves the matched tensors, or all inputs of the matched nodes, in float.
        why: the reason that the plan gives for keep_float; by default the name of the recipe.
        activations: the fields to change, spelled as in the recipe; None leaves the activations in float, so
            that only weights are quantized.
        weights: the fields to change, likewise.
    """

    fault = RecipeError

    tensors: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    keep_float: bool = False
    why: str = ""
    activations: dict[str, Any] | None = {}
    weights: dict[str, Any] = {}

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Override:
        if not (self.tensors or self.nodes or self.op_types or self.modules):
            raise ValueError("an override needs tensors, nodes, op_types or modules")
        if not (self.keep_float or self.activations is None or self.activations or self.weights):
            raise ValueError("an override needs keep_float, activations or weights")
        if self.why and not self.keep_float:
            raise ValueError("why is the reason for keep_float; leave it out, or set that")
        return self

    @cached_property
    def _tensors(self) -> frozenset[str]:
        return frozenset(self.tensors)

    @cached_property
    def _tensor_globs(self) -> tuple[str, ...]:
        # An override may name thousands of tensors: plain names are looked up in a set.
        return tuple(pattern for pattern in self.tensors if glob.escape(pattern) != pattern)

    def matches(self, node: str, op_type: str, tensor: str) -> bool:
        """Tell whether the override applies to input `tensor` of `node`."""
        return (
            tensor in self._tensors
            or any(fnmatchcase(tensor, pattern) for pattern in self._tensor_globs)
            or any(match_name(pattern, node) for pattern in self.nodes)
            or op_type in self.op_types
        )

    def without_rounding(self) -> Override:
        """Return the override without a rounding of weights."""
        weights = {name: value for name, value in self.weights.items() if name != "rounding"}
        return self.model_copy(update={"weights": weights})


def match_name(pattern: str, name: str) -> bool:
    """Tell whether `name` is `pattern`, or matches it as a glob."""
    # Exact first: a name may itself hold glob characters, as in `layer[0]`.
    return name == pattern or fnmatchcase(name, pattern)


def apply_changes(base: dict[str, Any] | None, changes: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return `base` with `changes`; None, weight-only, if `changes` is None or both are empty."""
    if changes is None or (base is None and not changes):
        return None
    return {**(base or {}), **changes}

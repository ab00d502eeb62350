"""Plan of a module that waits for the first batch, which shows what the forwards call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from onnxfq.documents.plan import Plan, Skipped
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError, ModelError, OnnxfqError, RecipeError
from onnxfq.support.records import join_lines
from onnxfq.torch.fused import switch_fused
from onnxfq.torch.insertion import Settings, insert
from onnxfq.torch.kernels import is_transforming
from onnxfq.torch.layers import SUFFIX, Swapped, held_quantizers, layer_kind, restore, swap
from onnxfq.torch.module_names import QuantizerHolder, is_leaf
from onnxfq.torch.module_plan import ModulePlan, plan_by_layers, plan_module
from onnxfq.torch.placement import check_overrides, find_layers, plan_layers, refuse_rewrites
from onnxfq.torch.quantizer import FakeQuantize
from onnxfq.torch.recording import record_calls

PLAN = "quantization_plan"
"""Attribute of a quantized module with its plan."""

_WAITS = (
    "operations in forwards are planned with the first batch that the module gets; give example_inputs to "
    "plan them now"
)


class Unfinished:
    """Pre-hook of a module with quantizers in its layers, which completes the plan at the first batch.

    Attributes:
        begin: called with each quantizer that is added, as by a block of `compute_encodings`.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, settings: Settings, strict: bool) -> None:
        self.layers, self.name = find_layers(model), type(model).__name__
        paths = {path: path for path, _ in model.named_modules()}
        refuse_rewrites(recipe)
        self.recipe, self.settings, self.strict = recipe, settings, strict
        self.in_nodes = recipe.for_modules(paths)
        self.by_layers = plan_layers(self.in_nodes, self.layers)
        self.begin: Callable[[FakeQuantize], None] | None = None
        self.handle: Any = None

    def wait(self, model: nn.Module) -> None:
        """Put quantizers into the layers, and wait for a batch.

        Raises RecipeError for an override whose names match no layer: operations have no names yet.
        """
        try:
            named = ((path, type(m).__name__) for path, m in model.named_modules() if is_leaf(m))
            check_overrides(self.in_nodes, self.layers, {path: (path, {kind}) for path, kind in named}, ())
        except RecipeError as error:
            raise RecipeError(f"{error}; to name operations of a forward, give example_inputs") from None
        insert(model, plan_by_layers(self.by_layers, model), self.settings, {})
        if layer_kind(model) is None:
            swap(model, {})  # the forward that runs with the first batch is known before it is planned
        model.__dict__[PLAN] = self._without_forward(_WAITS)
        self.handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def leave(self) -> None:
        """Wait no longer."""
        self.handle.remove()

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Complete the plan, unless a transform or a replica runs the module."""
        if torch.compiler.is_compiling():
            raise ModelError(
                "the operations in the forwards are not planned yet; run one batch before torch.compile and "
                "torch.export, or give quantize_module example_inputs"
            )
        if not is_transforming() and not getattr(model, "_is_replica", False):
            self.leave()
            try:
                self.finish(model, args, kwargs)
            except DataError:
                self.handle = model.register_forward_pre_hook(self, with_kwargs=True)
                raise
            finally:
                swap(model, {})  # its forward has been looked up already

    def finish(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Plan the calls of a module on these inputs, and insert the quantizers.

        Raises RecipeError as `quantize_module`, DataError if forward does not take them, and ModelError if
        nothing can be quantized, or if the module cannot be exported and this is strict; the module is then
        as it was.
        """
        existing = dict(_held(model))
        switch_fused(model, fused=True)
        for module in list(model.modules()):
            restore(module)
        try:
            planned = self._plan(model, args, kwargs)
        except (DataError, RecipeError):
            if existing:
                insert(model, plan_by_layers(self.by_layers, model), self.settings, existing)
            raise
        added = insert(model, planned, self.settings, existing)
        model.__dict__[PLAN] = planned.plan
        begin = self.begin or (lambda quantizer: None)
        for quantizer in added:
            begin(quantizer)

    def _plan(self, model: nn.Module, args: Any, kwargs: Any) -> ModulePlan:
        try:
            record = record_calls(model, args, kwargs)
            return plan_module(model, self.recipe, self.layers, self.by_layers, record)
        except (DataError, RecipeError):
            raise
        except Exception as error:  # tracing runs the user's code, which may raise anything
            own = isinstance(error, OnnxfqError)
            text = join_lines(error) if own else f"{type(error).__name__}: {join_lines(error)[:120]}"
            if self.strict or not self.by_layers.placements:
                raise ModelError(f"{self.name}: {text}") from error
            why = f"its operations stay in float, only its layers are quantized: {text}"
            return plan_by_layers(self._without_forward(why), model)

    def _without_forward(self, why: str) -> Plan:
        left = Skipped(name=self.name, kind="node", op_type="forward", why=why)
        return self.by_layers.model_copy(update={"skipped": (*self.by_layers.skipped, left)})


def find_unfinished(model: nn.Module) -> list[Unfinished]:
    """Return what waits for a batch in a module."""
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    return [hook for hook in hooks if isinstance(hook, Unfinished)]


def _held(model: nn.Module) -> Iterator[tuple[QuantizerHolder, FakeQuantize]]:
    for path, module in model.named_modules():
        for name, child in held_quantizers(module).items() if isinstance(module, Swapped) else ():
            yield QuantizerHolder(path, name.removesuffix(SUFFIX)), child

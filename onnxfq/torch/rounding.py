"""The one autograd function of all roundings: a `RoundingRule` says the values and the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onnxfq.torch.kernels import is_transforming
from onnxfq.torch.onnx_node import is_exporting


class Saved(NamedTuple):
    """Tensors that the gradients of a rounding need.

    Attributes:
        x: the input; None if only its own gradient is needed, as of `first` and `second`.
        first: first parameter, a scale or the largest magnitude.
        second: second parameter, a zero point, an offset or the least value.
        inside: tells of each element whether it is on the grid.
    """

    x: Any
    first: Any
    second: Any
    inside: Any


class RoundingRule(ABC):
    """Rounding of x to a grid that two parameters give, which broadcast to x.

    Attributes:
        keeps: whether the gradient of x needs the parameters.
    """

    keeps = False

    @abstractmethod
    def round(self, x: Tensor, first: Any, second: Any, mask: bool) -> tuple[Tensor, Tensor | None]:
        """Return the result and, if `mask`, the elements on the grid as the gradients need them."""

    def by_x(self, gradient: Tensor, saved: Saved) -> Tensor:
        """Return the gradient of x: straight through inside."""
        return torch.where(saved.inside, gradient, 0)

    def by_first(self, gradient: Tensor, saved: Saved) -> Tensor | None:
        """Return the gradient of the first parameter, of its shape or of x's."""
        return None

    def by_second(self, gradient: Tensor, saved: Saved) -> Tensor | None:
        """Return the gradient of the second parameter, likewise."""
        return None

    def __call__(self, x: Tensor, first: Any, second: Any) -> Tensor:
        """Return the rounded x, with gradients where they are recorded."""
        given = [one for one in (x, first, second) if one is not None]
        recorded = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        # torch.jit.trace checks itself without gradients, and no file of a model holds a Function.
        if not is_transforming() and (torch.jit.is_tracing() or is_exporting() or not recorded):
            return self.round(x, first, second, mask=False)[0]
        y: Tensor = _Rounded.apply(x, first, second, self)[0]
        return y


class _Rounded(torch.autograd.Function):
    """(y, inside) of a rounding."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, first: Any, second: Any, rounding: RoundingRule) -> Any:
        y, inside = rounding.round(x, first, second, mask=True)
        # torch.compile takes tensors alone as outputs.
        return y, y.new_empty(0, dtype=torch.bool) if inside is None else inside

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.rounding = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        kept = ctx.rounding.keeps or any(ctx.needs_input_grad[1:])
        ctx.save_for_backward(*(tensors if kept else (None, None, None)), output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 4
        saved, rounding = Saved(*ctx.saved_tensors), ctx.rounding
        rules = (rounding.by_x, rounding.by_first, rounding.by_second)
        needs = zip(rules, ctx.needs_input_grad, strict=False)
        return (*(rule(gradient, saved) if needed else None for rule, needed in needs), None)

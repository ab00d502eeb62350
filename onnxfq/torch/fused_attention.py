"""Attention as two products with a Softmax between: TensorRT fuses all of it in low precision or none.

The pattern is that of `graph.patterns.attention`, on the traced code of a module. nn.MultiheadAttention is
one site and stays whole by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnxfq.graph.patterns.attention import Form, match_attention
from onnxfq.torch.functional import is_product
from onnxfq.torch.plain_attention import with_mask, without_empty_rows
from onnxfq.torch.traced import Traces, has_own_code

_SOFTMAX: tuple[Any, ...] = (torch.softmax, F.softmax, "softmax")
_BEHIND: tuple[Any, ...] = (
    *(F.dropout, torch.where, torch.nan_to_num, "nan_to_num", "masked_fill"),
    without_empty_rows,
)
# Scale and mask.
_BEFORE: tuple[Any, ...] = (
    *(operator.add, operator.iadd, operator.mul, operator.imul, operator.sub),
    *(operator.truediv, operator.itruediv, torch.add, torch.mul, torch.div),
    *(torch.where, torch.masked_fill, "add", "mul", "div", "masked_fill", "where"),
    with_mask,
)


def attentions(model: nn.Module, traces: Traces) -> Iterator[tuple[str, str]]:
    """Yield the names of both products of every attention in a traced forward: scores, then the mix."""
    for path, module in model.named_modules():
        if not has_own_code(module) or not traces.of(module).graphs:
            continue
        form, start = _form_of(module), f"{path}." if path else ""
        for node in traces.of(module).graphs[-1].nodes:
            found = match_attention(node, form)
            if found is not None:
                yield f"{start}{found.scores.name}", f"{start}{found.mix.name}"


def _form_of(module: nn.Module) -> Form[fx.Node]:
    """Return how the traced forward of `module` writes attention."""

    def calls(layers: tuple[type[nn.Module], ...], functions: tuple[Any, ...]) -> Callable[[fx.Node], bool]:
        def is_called(node: fx.Node) -> bool:
            if node.op == "call_module":
                return isinstance(module.get_submodule(str(node.target)), layers)
            return node.op in ("call_function", "call_method") and node.target in functions

        return is_called

    before, behind = (calls((nn.Dropout, nn.Identity), functions) for functions in (_BEFORE, _BEHIND))
    return Form(_makers_of, is_product, calls((nn.Softmax,), _SOFTMAX), before, behind)


def _makers_of(node: fx.Node) -> list[fx.Node | None]:
    given = (*node.args, *node.kwargs.values())
    return [value if isinstance(value, fx.Node) else None for value in given]

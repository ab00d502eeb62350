"""Attention as two products with a Softmax between: TensorRT fuses all of it in low precision or none.

The pattern is that of `graph.patterns.attention`, on the traced code of a module. nn.MultiheadAttention is
one site and stays whole by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnxfq.graph.patterns.attention import Form, match_attention
from onnxfq.torch.functional import is_product
from onnxfq.torch.plain_attention import with_mask, without_empty_rows
from onnxfq.torch.traced import Traces, has_own_code

_LAYERS = (nn.Softmax, nn.Dropout, nn.Identity)
_SOFTMAX: tuple[Any, ...] = (torch.softmax, F.softmax, "softmax", nn.Softmax)
_BEHIND: tuple[Any, ...] = (
    *(F.dropout, torch.where, torch.nan_to_num, "nan_to_num", "masked_fill"),
    *(nn.Dropout, nn.Identity, without_empty_rows),
)
# Scale and mask.
_BEFORE: tuple[Any, ...] = (
    *(operator.add, operator.iadd, operator.mul, operator.imul, operator.sub),
    *(operator.truediv, operator.itruediv, torch.add, torch.mul, torch.div),
    *(torch.where, torch.masked_fill, "add", "mul", "div", "masked_fill", "where"),
    *(nn.Dropout, nn.Identity, with_mask),
)


def attentions(model: nn.Module, traces: Traces) -> Iterator[tuple[str, str]]:
    """Yield the names of both products of every attention in a traced forward: scores, then the mix."""
    for path, module in model.named_modules():
        if not has_own_code(module) or not traces.of(module).graphs:
            continue
        start = f"{path}." if path else ""
        form = Form(_makers_of, partial(_op, module), _SOFTMAX, _BEFORE, _BEHIND)
        for node in traces.of(module).graphs[-1].nodes:
            found = match_attention(node, form)
            if found is not None:
                yield f"{start}{found.scores.name}", f"{start}{found.mix.name}"


def _op(module: nn.Module, node: fx.Node) -> Any:
    """Return what `node` calls: a function, a method by name, a kind of layer; "MatMul" for products."""
    if is_product(node):
        return "MatMul"
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return next((kind for kind in _LAYERS if isinstance(layer, kind)), None)
    return node.target if node.op in ("call_function", "call_method") else None


def _makers_of(node: fx.Node) -> list[fx.Node | None]:
    given = (*node.args, *node.kwargs.values())
    return [value if isinstance(value, fx.Node) else None for value in given]

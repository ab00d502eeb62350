"""Attention as two products with a Softmax between: TensorRT fuses all of it in low precision or none.

The rule is that of `policies.attention`, on the traced code of a module. nn.MultiheadAttention is one site
and stays whole by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnxfq.torch.functional import is_product
from onnxfq.torch.plain_attention import with_mask, without_empty_rows
from onnxfq.torch.traced import Traces, has_own_code

_STEPS = 6
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
        start = f"{path}." if path else ""
        for node in traces.of(module).graphs[-1].nodes:
            if is_product(node):
                soft = _above(module, node.args[0] if node.args else None, _BEHIND, _is_softmax)
                scores = None if soft is None else _above(module, soft.args[0], _BEFORE, _is_product)
                if scores is not None:
                    yield f"{start}{scores.name}", f"{start}{node.name}"


def _is_softmax(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.Softmax)
    return node.op in ("call_function", "call_method") and node.target in _SOFTMAX


def _is_product(module: nn.Module, node: fx.Node) -> bool:
    return is_product(node)


def _above(module: nn.Module, value: Any, through: tuple[Any, ...], wanted: Any) -> fx.Node | None:
    """Return the nearest node that is wanted above `value`, past dropout and the operations in `through`."""
    level = [value] if isinstance(value, fx.Node) else []
    for _ in range(_STEPS):
        for node in level:
            if wanted(module, node):
                return node
        level = [
            parent for node in level if _passes(module, node, through) for parent in node.all_input_nodes
        ]
    return None


def _passes(module: nn.Module, node: fx.Node, through: tuple[Any, ...]) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), (nn.Dropout, nn.Identity))
    return node.op in ("call_function", "call_method") and node.target in through

"""Decomposition of F.scaled_dot_product_attention in a traced forward into two products and a Softmax.

The export writes the same steps, and both products are quantized there: queries and keys scaled, then their
product, mask, Softmax and the product with the values. If neither product is quantized, the call is restored.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

_LEADING = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def expand(graph: fx.Graph) -> None:
    """Decompose every scaled_dot_product_attention, in place.

    Its products are named after the call, with the suffixes _scores and _context.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.scaled_dot_product_attention:
            continue
        given = dict(zip(_LEADING, node.args, strict=False)) | node.kwargs
        grouped = given.get("enable_gqa", False)
        mask, causal = given.get("attn_mask"), given.get("is_causal", False)

        with graph.inserting_before(node):

            def step(target: Any, *args: Any, end: str = "", before: fx.Node = node) -> fx.Node:
                name = f"{before.name}_{end}" if end else None
                return graph.create_node("call_function", target, args, name=name)

            queries = step(scale_queries, given["query"], given.get("scale"))
            keys = step(scale_keys, given["key"], given["query"], given.get("scale"), grouped)
            values = step(heads_for, given["value"], given["query"], grouped)
            scores = step(torch.matmul, queries, keys, end="scores")
            masked = step(with_mask, scores, mask, causal)
            weights = step(clear_empty_rows, step(torch.softmax, masked, -1), masked, mask)
            dropped = step(F.dropout, weights, given.get("dropout_p", 0.0), True)
            context = step(torch.matmul, dropped, values, end="context")
        context.meta["attention"] = (scores, node.target, node.args, node.kwargs)
        node.replace_all_uses_with(context)
        graph.erase_node(node)


def restore_calls(graph: fx.Graph, quantized: set[str]) -> None:
    """Restore the call of every attention without a product name in `quantized`."""
    for node in list(graph.nodes):
        if "attention" in node.meta:
            scores, function, args, kwargs = node.meta["attention"]
            if not quantized & {node.name, scores.name}:
                with graph.inserting_before(node):
                    call = graph.call_function(function, args, kwargs)
                node.replace_all_uses_with(call)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def scale_queries(query: Tensor, scale: float | None) -> Tensor:
    """Return the queries times the root of the scale; the default scale is 1 / sqrt(head size)."""
    return query * _root(query, scale)


def scale_keys(key: Tensor, query: Tensor, scale: float | None, grouped: bool) -> Tensor:
    """Return the keys times the root of the scale, transposed, [..., head size, keys]."""
    return heads_for(key, query, grouped).transpose(-2, -1) * _root(query, scale)


def heads_for(value: Tensor, query: Tensor, grouped: bool) -> Tensor:
    """Return keys or values with each head repeated for its group of query heads."""
    return value.repeat_interleave(query.shape[-3] // value.shape[-3], -3) if grouped else value


def with_mask(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return scores plus the mask: -inf where a bool mask is false, and above the diagonal if `causal`."""
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    return scores + mask


def clear_empty_rows(weights: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return weights with 0 in fully masked rows, for which the Softmax is NaN."""
    if mask is None:
        return weights
    return weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)


def _root(query: Tensor, scale: float | None) -> float:
    return math.sqrt(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)

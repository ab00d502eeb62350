"""Quantized nn.MultiheadAttention, decomposed into matrix products with quantizers on their operands.

| quantizer                               | tensor                                                    |
|-----------------------------------------|-----------------------------------------------------------|
| query, key, value                       | the inputs; one quantizer if they are one tensor          |
| in_proj_weight, or [qkv]_proj_weight    | the weights of the input projections                      |
| scores_input, scores_other              | projected queries (scaled) and keys                       |
| context_input, context_other            | attention probabilities and projected values              |

The output projection is a Linear and is quantized like any other.

F.scaled_dot_product_attention in a traced forward becomes two products and a Softmax. The export writes the
same steps, and both products are quantized there: queries and keys scaled, then their product, mask, Softmax
and the product with the values. If neither product is quantized, the call is restored.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from onnxfq.torch.layers import SUFFIX, Swapped, reading

ACTIVATIONS = ("query", "key", "value", "scores_input", "scores_other", "context_input", "context_other")


# Fused torch kernels that would bypass the quantizers, and the attribute that switches each off.
_FUSED: tuple[tuple[type[nn.Module], str, object], ...] = (
    (nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
    (nn.TransformerEncoder, "use_nested_tensor", False),
)
_BEFORE = "before_quantization"


def switch_fused(model: nn.Module, fused: bool) -> None:
    """Switch torch's fused encoder kernels off, or restore their previous state."""
    for module in model.modules():
        for kind, name, off in _FUSED:
            if isinstance(module, kind) and not fused and hasattr(module, name):
                module.__dict__[_BEFORE] = getattr(module, name)
                setattr(module, name, off)
            elif isinstance(module, kind) and fused and _BEFORE in module.__dict__:
                setattr(module, name, module.__dict__.pop(_BEFORE))


def explain_unsupported(module: nn.Module) -> str:
    """Return why a MultiheadAttention cannot be decomposed; empty if it can."""
    if module.bias_k is not None or module.add_zero_attn:
        return "add_bias_kv and add_zero_attn cannot be decomposed; write its matmuls in a module"
    return ""


class SwappedAttention(Swapped):
    """MultiheadAttention with its forward written out."""

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as nn.MultiheadAttention defines it; is_causal is only a hint, the mask decides."""
        batched = query.ndim == 3
        query, key, value = _inputs(self, query, key, value)
        if not batched:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        with reading(self):
            projected = _project(self, query, key, value)
        # [L, N, E] as [N, heads, L, E / heads]
        q, k, v = (x.unflatten(2, (self.num_heads, -1)).permute(1, 2, 0, 3) for x in projected)
        # Scaled before the product, as torch does.
        scores = _quantize_input(self, "scores_input", q * math.sqrt(1.0 / q.shape[-1])) @ _quantize_input(
            self, "scores_other", k
        ).transpose(-2, -1)
        mask = _mask(attn_mask, key_padding_mask, scores)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, self.dropout, self.training)
        context = _quantize_input(self, "context_input", weights) @ _quantize_input(self, "context_other", v)
        y = self.out_proj(context.permute(2, 0, 1, 3).flatten(2))  # [L, N, E]
        if not batched:
            y, weights = y.squeeze(1), weights.squeeze(0)
        elif self.batch_first:
            y = y.transpose(0, 1)
        if not need_weights:
            return y, None
        return y, weights.mean(dim=-3) if average_attn_weights else weights


def _quantize_input(module: nn.Module, name: str, x: Tensor) -> Tensor:
    quantizer = module._modules.get(name + SUFFIX)
    return x if quantizer is None else quantizer(x)


def _inputs(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q = _quantize_input(module, "query", query)
    k = q if key is query else _quantize_input(module, "key", key)
    if value is key:
        return q, k, k
    return q, k, q if value is query else _quantize_input(module, "value", value)


def _project(module: Any, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _mask(attn_mask: Tensor | None, padding: Tensor | None, scores: Tensor) -> Tensor | None:
    """Return the mask added to the scores [N, heads, L, S]; bool masks forbid where they are true."""
    total = None
    if attn_mask is not None:
        shaped = (
            attn_mask if attn_mask.ndim == 2 else attn_mask.reshape(scores.shape[0], -1, *attn_mask.shape[1:])
        )
        total = _additive(shaped, scores)
    if padding is not None:
        forbidden = _additive(padding, scores)[:, None, None, :]
        total = forbidden if total is None else total + forbidden
    return total


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, float("-inf"))


_LEADING = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def decompose_sdpa(graph: fx.Graph) -> None:
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

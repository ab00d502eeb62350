"""Quantized nn.MultiheadAttention, decomposed into matrix products with quantizers on their operands.

| quantizer                               | tensor                                                    |
|-----------------------------------------|-----------------------------------------------------------|
| query, key, value                       | the inputs; one quantizer if they are one tensor          |
| in_proj_weight, or [qkv]_proj_weight    | the weights of the input projections                      |
| scores_input, scores_other              | projected queries (scaled) and keys                       |
| context_input, context_other            | attention probabilities and projected values              |

The output projection is a Linear and is quantized like any other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onnxfq.torch.layers import SUFFIX, Swapped, block_of, layer_kind, reading

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

    def forward(self, *args: Any, **keywords: Any) -> tuple[Tensor, Tensor | None]:
        """Attend as nn.MultiheadAttention defines it."""
        with block_of(self):
            return _attend(self, *args, **keywords)


def _attend(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # only a hint: the mask decides
) -> tuple[Tensor, Tensor | None]:
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
    q, k, v = (x.reshape(*x.shape[:2], self.num_heads, -1).permute(1, 2, 0, 3) for x in projected)
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


_marks: list[Callable[[str, Tensor], Tensor]] = []


@contextlib.contextmanager
def marked_by(mark: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Let `mark` see the tensors of a MultiheadAttention by name, while a plan is made."""
    _marks.append(mark)
    try:
        yield
    finally:
        _marks.pop()


def forward_of(module: nn.Module) -> Callable[..., Any]:
    """Return the forward that `module` has once it is quantized."""
    if isinstance(module, nn.MultiheadAttention) and layer_kind(module) and not explain_unsupported(module):
        return partial(_attend, module)
    forward: Callable[..., Any] = module.forward
    return forward


def _quantize_input(module: nn.Module, name: str, x: Tensor) -> Tensor:
    quantizer = module._modules.get(name + SUFFIX)
    if quantizer is None:
        return _marks[-1](name, x) if _marks else x
    quantized: Tensor = quantizer(x)
    return quantized


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

"""Transformer encoders: ViT-B/16 (Dosovitskiy, 2020) and a small BERT (Devlin, 2018)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from networks.builder import Batch, Builder


class _Encoder:
    """Attention and the two linear layers after it, as exporters write them."""

    def __init__(self, b: Builder, width: int, heads: int, tokens: int) -> None:
        self.b, self.width = b, width
        # 0 keeps the batch, and an open number of tokens, as it is.
        self.by_head = b.constant(np.array([0, tokens, heads, width // heads], np.int64))
        self.joined = b.constant(np.array([0, tokens, width], np.int64))
        self.scale = b.constant(np.float32(np.sqrt(heads / width)))
        self.half, self.one = b.constant(np.float32(0.5)), b.constant(np.float32(1.0))
        self.root_half = b.constant(np.float32(np.sqrt(0.5)))

    def norm(self, x: str) -> str:
        b, width = self.b, self.width
        ones, zeros = b.constant(np.ones(width, np.float32)), b.constant(np.zeros(width, np.float32))
        return b.node("LayerNormalization", [x, ones, zeros], axis=-1)

    def attention(self, x: str, mask: str = "") -> str:
        """Add self-attention of `x`; `mask` is added to the scores."""
        b = self.b
        query, key, value = (self._head(x, order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = b.node("Mul", [b.node("MatMul", [query, key]), self.scale])
        if mask:
            scores = b.node("Add", [scores, mask])
        weights = b.node("Softmax", [scores], axis=-1)
        mixed = b.node("Transpose", [b.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        return b.linear(b.node("Reshape", [mixed, self.joined]), self.width, self.width)

    def feed_forward(self, x: str) -> str:
        """Add a linear layer to four times the width, GELU, and one back."""
        return self.b.linear(
            self._gelu(self.b.linear(x, self.width, 4 * self.width)), 4 * self.width, self.width
        )

    def _head(self, x: str, order: list[int]) -> str:
        b = self.b
        split = b.node("Reshape", [b.linear(x, self.width, self.width), self.by_head])
        return b.node("Transpose", [split], perm=order)

    def _gelu(self, x: str) -> str:
        b = self.b
        erf = b.node("Erf", [b.node("Mul", [x, self.root_half])])
        return b.node("Mul", [b.node("Mul", [x, b.node("Add", [erf, self.one])]), self.half])


def vit_b16(batch: Batch) -> onnx.ModelProto:
    """Return ViT-B/16: 12 layers, 768 wide, 12 heads, 197 tokens; 72 linear layers, 24 attention products."""
    b, width = Builder(), 768
    encoder = _Encoder(b, width, 12, 197)
    x = b.node("Conv", ["x", b.weight(width, 3, 16, 16)], kernel_shape=[16, 16], strides=[16, 16])
    x = b.node("Reshape", [x, b.constant(np.array([0, width, 196], np.int64))])
    x = b.node("Transpose", [x], perm=[0, 2, 1])
    x = b.node("Concat", [_class_token(b, batch, width), x], axis=1)
    for _ in range(12):
        x = b.node("Add", [x, encoder.attention(encoder.norm(x))])
        x = b.node("Add", [x, encoder.feed_forward(encoder.norm(x))])
    x = b.node("Gather", [encoder.norm(x), b.constant(np.array(0, np.int64))], axis=1)
    b.node("Gemm", [x, b.weight(1000, width)], transB=1)
    return b.model("vit_b16", batch)


def small_encoder(
    batch: Batch, tokens: Batch = 16, width: int = 64, heads: int = 4, layers: int = 3
) -> onnx.ModelProto:
    """Return layers of a ViT on tokens that are given as they are; 10 numbers a token.

    tokens: their number, or the name of an open dimension.
    """
    b = Builder()
    encoder, x = _Encoder(b, width, heads, tokens if isinstance(tokens, int) else 0), "x"
    for _ in range(layers):
        x = b.node("Add", [x, encoder.attention(encoder.norm(x))])
        x = b.node("Add", [x, encoder.feed_forward(encoder.norm(x))])
    logits = b.linear(encoder.norm(x), width, 10)
    return b.model("small_encoder", batch, {"x": (tokens, width)}, {logits: (tokens, 10)})


def _class_token(b: Builder, batch: Batch, width: int) -> str:
    if isinstance(batch, int):
        return b.constant(np.zeros((batch, 1, width), np.float32))
    samples = b.node("Gather", [b.node("Shape", ["x"]), b.constant(np.array([0], np.int64))])
    shape = b.node("Concat", [samples, b.constant(np.array([1, width], np.int64))], axis=0)
    return b.node("Expand", [b.constant(np.zeros((1, 1, width), np.float32)), shape])


def bert(batch: Batch) -> onnx.ModelProto:
    """Return a BERT of 4 layers, 256 wide, 4 heads of 64, for 128 tokens: 24 linear layers, post-norm."""
    b, width, tokens, words = Builder(), 256, 128, 2000
    encoder = _Encoder(b, width, 4, tokens)
    table = b.constant((b.rng.standard_normal((words, width)) * 0.5).astype(np.float32))
    places = b.constant((b.rng.standard_normal((1, tokens, width)) * 0.1).astype(np.float32))
    x = encoder.norm(b.node("Add", [b.node("Gather", [table, "input_ids"]), places]))
    # [batch, tokens] of 0 and 1 becomes 0 and -10,000, added to the scores of all heads and queries.
    wide = b.node("Unsqueeze", ["attention_mask", b.constant(np.array([1, 2], np.int64))])
    missing = b.node("Sub", [encoder.one, b.node("Cast", [wide], to=TensorProto.FLOAT)])
    mask = b.node("Mul", [missing, b.constant(np.float32(-1e4))])
    for _ in range(4):
        x = encoder.norm(b.node("Add", [x, encoder.attention(x, mask)]))
        x = encoder.norm(b.node("Add", [x, encoder.feed_forward(x)]))
    first = b.node("Gather", [x, b.constant(np.array(0, np.int64))], axis=1)
    pooled = b.node("Tanh", [b.node("Gemm", [first, b.weight(width, width, gain=1.0)], transB=1)])
    logits = b.node("Gemm", [pooled, b.weight(2, width, gain=1.0)], transB=1)
    inputs = {"input_ids": (tokens,), "attention_mask": (tokens,)}
    return b.model("bert", batch, inputs, {logits: (2,)}, TensorProto.INT64)

"""Decoder of the shapes of Llama (Touvron, 2023) with random weights, written to disk in slabs.

RMSNorm, rotary positions, fewer heads for keys and values than for queries, SwiGLU, no biases. A few channels
of the residual stream are OUTLIER times the others, as in trained decoders (Dettmers et al., 2022).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from networks.builder import Builder
from networks.external_weights import ExternalWeights

OUTLIER = 20.0
"""Magnitude of an outlier channel, in times the others."""

OUTLIERS = 256
"""One channel in so many is an outlier."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes:
        width: of the residual stream.
        layers: number of blocks.
        heads: of queries.
        key_heads: of keys and values.
        hidden: width inside the feed-forward part.
        words: of the vocabulary.
        tokens: of a sample.
    """

    width: int = 2048
    layers: int = 16
    heads: int = 32
    key_heads: int = 8
    hidden: int = 8192
    words: int = 32_000
    tokens: int = 128

    @property
    def parameters(self) -> int:
        """Number of weights of all matrices."""
        keys = self.width * self.key_heads // self.heads
        block = 2 * self.width * (self.width + keys) + 3 * self.width * self.hidden
        return self.layers * block + 2 * self.words * self.width


def write_decoder(folder: Path, shape: DecoderShape) -> Path:
    """Write `decoder.onnx` and `decoder.onnx.data`: input_ids [N, tokens] to logits [N, tokens, words]."""
    with closing(ExternalWeights(folder / "decoder.onnx.data")) as weights:
        decoder = _Decoder(shape, weights)
        logits = decoder.build()
    inputs, outputs = {"input_ids": (shape.tokens,)}, {logits: (shape.tokens, shape.words)}
    model = decoder.model("decoder", "N", inputs, outputs, TensorProto.INT64)
    model.graph.initializer.extend(decoder.matrices)
    path = folder / "decoder.onnx"
    onnx.save(model, path)
    return path


def random_tokens(shape: DecoderShape, samples: int, seed: int = 0) -> np.ndarray:
    """Return token numbers [samples, tokens]; small numbers are frequent, as in text (Zipf, 1935)."""
    chances = 1 / np.arange(1, shape.words + 1)
    rng = np.random.default_rng(seed)
    return rng.choice(shape.words, (samples, shape.tokens), p=chances / chances.sum())


class _Decoder(Builder):
    """Nodes of a decoder, whose matrices go to a file."""

    def __init__(self, shape: DecoderShape, weights: ExternalWeights) -> None:
        super().__init__()
        self._shape, self._file = shape, weights
        self.matrices: list[TensorProto] = []
        size = shape.width // shape.heads
        angles = np.outer(np.arange(shape.tokens), 10_000.0 ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([angles, angles], axis=1).astype(np.float32)
        self._cos, self._sin = self.constant(np.cos(angles)), self.constant(np.sin(angles))
        future = np.triu(np.full((shape.tokens, shape.tokens), -1e4, np.float32), 1)
        self._mask, self._root = self.constant(future), self.constant(np.float32(size**-0.5))
        self._two, self._epsilon = self.constant(np.float32(2.0)), self.constant(np.float32(1e-6))

    def build(self) -> str:
        """Add all nodes; return the name of the logits."""
        shape = self._shape
        table = self.matrix(shape.words, shape.width, 1.0)
        size = np.ones(shape.width, np.float32)
        size[::OUTLIERS] = OUTLIER
        x = self.node("Mul", [self.node("Gather", [table, "input_ids"]), self.constant(size)])
        for _ in range(shape.layers):
            x = self.node("Add", [x, self._attention(self._norm(x))])
            x = self.node("Add", [x, self._feed_forward(self._norm(x))])
        return self._project(self._norm(x), shape.width, shape.words)

    def matrix(self, rows: int, columns: int, spread: float) -> str:
        """Write a random matrix to the file."""
        self.matrices.append(self._file.add(f"matrix_{len(self.matrices)}", rows, columns, spread))
        return self.matrices[-1].name

    def _project(self, x: str, inputs: int, outputs: int) -> str:
        return self.node("MatMul", [x, self.matrix(inputs, outputs, inputs**-0.5)])

    def _norm(self, x: str) -> str:
        mean = self.node("ReduceMean", [self.node("Pow", [x, self._two])], axes=[-1])
        root = self.node("Sqrt", [self.node("Add", [mean, self._epsilon])])
        gains = 1 + 0.1 * self.rng.standard_normal(self._shape.width)
        return self.node("Mul", [self.node("Div", [x, root]), self.constant(gains.astype(np.float32))])

    def _attention(self, x: str) -> str:
        shape = self._shape
        size, shared = shape.width // shape.heads, shape.heads // shape.key_heads
        query = self._rotate(self._split(x, shape.heads), size)
        key = self._repeat(self._rotate(self._split(x, shape.key_heads), size), size, shared)
        value = self._repeat(self._split(x, shape.key_heads), size, shared)
        scores = self.node("MatMul", [query, self.node("Transpose", [key], perm=[0, 1, 3, 2])])
        scores = self.node("Add", [self.node("Mul", [scores, self._root]), self._mask])
        mixed = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), value])
        joined = self.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        joined = self._reshape(joined, 0, shape.tokens, shape.width)
        return self._project(joined, shape.width, shape.width)

    def _split(self, x: str, heads: int) -> str:
        shape = self._shape
        size = shape.width // shape.heads
        made = self._reshape(self._project(x, shape.width, heads * size), 0, shape.tokens, heads, size)
        return self.node("Transpose", [made], perm=[0, 2, 1, 3])

    def _rotate(self, x: str, size: int) -> str:
        ends = (np.array([place], np.int64) for place in (0, size // 2, size, -1))
        start, middle, end, axis = (self.constant(place) for place in ends)
        left, right = self.node("Slice", [x, start, middle, axis]), self.node("Slice", [x, middle, end, axis])
        turned = self.node("Concat", [self.node("Neg", [right]), left], axis=-1)
        return self.node("Add", [self.node("Mul", [x, self._cos]), self.node("Mul", [turned, self._sin])])

    def _repeat(self, x: str, size: int, times: int) -> str:
        shape = self._shape
        one = self.node("Unsqueeze", [x, self.constant(np.array([2], np.int64))])
        wide = self.node("Expand", [one, self.constant(np.array([1, 1, times, 1, 1], np.int64))])
        return self._reshape(wide, 0, shape.heads, shape.tokens, size)

    def _reshape(self, x: str, *sizes: int) -> str:
        return self.node("Reshape", [x, self.constant(np.array(sizes, np.int64))])

    def _feed_forward(self, x: str) -> str:
        width, hidden = self._shape.width, self._shape.hidden
        gate = self._project(x, width, hidden)
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
        return self._project(self.node("Mul", [gate, self._project(x, width, hidden)]), hidden, width)

"""Small transformers with random weights and the norms, positions, gates and sums of known families."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package

from networks.builder import Builder  # noqa: E402

WIDTH, HEADS, HIDDEN, WORDS, TOKENS = 24, 3, 40, 50, 10
SIZE = WIDTH // HEADS


@dataclass(frozen=True)
class Family:
    """The structure of a family of transformers.

    Attributes:
        norm: `rms` written out, `simplified` or `layer`, as one operator, or `layer written out`.
        key_heads: of keys and values.
        packed: whether queries, keys and values are one product.
        biased: whether products have biases.
        rotary: whether positions turn queries and keys; else a table of positions is added.
        gated: whether two products make the hidden values.
        start: `words`, or `Gelu` behind a convolution over the inputs.
        post_norm: `""`, `block` where the output of each block is normed before it is added, or `sum` where
            the sum is.
        head_norm: whether queries and keys are normed in each head, with gains.
        layer_scale: whether what is added has gains.
        tied: whether the table of words is the last product.
        causal: whether later positions are hidden.
    """

    norm: str = "rms"
    key_heads: int = HEADS
    packed: bool = False
    biased: bool = False
    rotary: bool = True
    gated: bool = True
    start: str = "words"
    post_norm: str = ""
    head_norm: bool = False
    layer_scale: bool = False
    tied: bool = False
    causal: bool = True


FAMILIES = {
    "Llama": Family(key_heads=1, tied=True),
    "Qwen2": Family("simplified", key_heads=1, biased=True),
    "Qwen3": Family("simplified", key_heads=1, head_norm=True),
    "Phi3": Family(packed=True),
    "GPT-2": Family("layer", packed=True, biased=True, rotary=False, gated=False, tied=True),
    "GPT-2 written out": Family("layer written out", biased=True, rotary=False, gated=False),
    "Falcon": Family("layer", key_heads=1, rotary=False, gated=False, tied=True),
    "ViT": Family("layer", packed=True, biased=True, rotary=False, gated=False, causal=False),
    "DINOv2": Family("layer", biased=True, rotary=False, gated=False, layer_scale=True, causal=False),
    "Gemma": Family(post_norm="block", key_heads=1, tied=True),
    "Whisper": Family("layer", biased=True, rotary=False, gated=False, start="Gelu", causal=False),
    "BERT": Family("layer", biased=True, rotary=False, gated=False, post_norm="sum", causal=False),
}


class _Transformer(Builder):
    def __init__(self, family: Family) -> None:
        super().__init__()
        self.family = family

    def number(self, value: float) -> str:
        return self.constant(np.asarray(value, np.float32))

    def sizes(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    def vector(self, size: int, mean: float = 0.0) -> str:
        return self.constant((mean + 0.4 * self.rng.normal(size=size)).astype(np.float32))

    def norm(self, x: str, size: int = WIDTH) -> str:
        gain, kind = self.vector(size, 1.0), self.family.norm
        if kind == "simplified":
            return self.node("SimplifiedLayerNormalization", [x, gain], axis=-1, epsilon=1e-5)
        if kind == "layer":
            return self.node("LayerNormalization", [x, gain, self.vector(size)], axis=-1)
        if kind == "layer written out":
            x = self.node("Sub", [x, self.node("ReduceMean", [x], axes=[-1], keepdims=1)])
        square = self.node("Pow", [x, self.number(2.0)])
        mean = self.node("ReduceMean", [square], axes=[-1], keepdims=1)
        root = self.node("Sqrt", [self.node("Add", [mean, self.number(1e-5)])])
        scaled = self.node("Mul", [self.node("Div", [x, root]), gain])
        return self.node("Add", [scaled, self.vector(size)]) if kind == "layer written out" else scaled

    def product(self, x: str, inputs: int, outputs: int) -> str:
        weight = self.constant(self.weight_values(inputs, outputs))
        made = self.node("MatMul", [x, weight])
        return self.node("Add", [made, self.bias(outputs)]) if self.family.biased else made

    def split(self, x: str, *sizes: int) -> list[str]:
        self.node("Split", [x, self.sizes(*sizes)], axis=-1)
        node = self.nodes[-1]
        node.output[:] = [f"{x}_{part}" for part in range(len(sizes))]
        return list(node.output)

    def heads(self, x: str, count: int) -> str:
        apart = self.node("Reshape", [x, self.sizes(0, 0, count, SIZE)])
        return self.node("Transpose", [apart], perm=[0, 2, 1, 3])

    def rotate(self, x: str) -> str:
        angles = np.outer(np.arange(TOKENS), 1.0 / 100.0 ** (np.arange(SIZE // 2) / SIZE))
        angles = np.concatenate([angles, angles], axis=1)
        cosine, sine = (self.constant(turn(angles).astype(np.float32)) for turn in (np.cos, np.sin))
        first, second = self.split(x, SIZE // 2, SIZE // 2)
        turned = self.node("Concat", [self.node("Neg", [second]), first], axis=-1)
        return self.node("Add", [self.node("Mul", [x, cosine]), self.node("Mul", [turned, sine])])

    def repeat(self, x: str) -> str:
        count = self.family.key_heads
        if count == HEADS:
            return x
        wide = self.node("Unsqueeze", [x, self.sizes(2)])
        shape = self.sizes(1, count, HEADS // count, TOKENS, SIZE)
        wide = self.node("Expand", [wide, shape])
        return self.node("Reshape", [wide, self.sizes(0, HEADS, TOKENS, SIZE)])

    def attention(self, x: str) -> str:
        family, keys = self.family, self.family.key_heads * SIZE
        if family.packed:
            parts = self.split(self.product(x, WIDTH, WIDTH + 2 * keys), WIDTH, keys, keys)
        else:
            parts = [self.product(x, WIDTH, size) for size in (WIDTH, keys, keys)]
        counts = (HEADS, family.key_heads, family.key_heads)
        query, key, value = (self.heads(part, count) for part, count in zip(parts, counts, strict=True))
        if family.head_norm:
            query, key = self.norm(query, SIZE), self.norm(key, SIZE)
        if family.rotary:
            query, key = self.rotate(query), self.rotate(key)
        key, value = self.repeat(key), self.repeat(value)
        scores = self.node("MatMul", [query, self.node("Transpose", [key], perm=[0, 1, 3, 2])])
        scores = self.node("Mul", [scores, self.number(SIZE**-0.5)])
        if family.causal:
            hidden = np.triu(np.full((TOKENS, TOKENS), -1e4, np.float32), 1)
            scores = self.node("Add", [scores, self.constant(hidden)])
        mixed = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), value])
        mixed = self.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.sizes(0, 0, WIDTH)])
        return self.product(mixed, WIDTH, WIDTH)

    def gelu(self, x: str) -> str:
        error = self.node("Erf", [self.node("Mul", [x, self.number(0.5**0.5)])])
        return self.node("Mul", [x, self.node("Add", [error, self.number(1.0)])])

    def feed_forward(self, x: str) -> str:
        hidden = self.product(x, WIDTH, HIDDEN)
        if self.family.gated:
            gate = self.node("Mul", [hidden, self.node("Sigmoid", [hidden])])
            return self.product(self.node("Mul", [gate, self.product(x, WIDTH, HIDDEN)]), HIDDEN, WIDTH)
        return self.product(self.gelu(hidden), HIDDEN, WIDTH)

    def block(self, x: str, made: str) -> str:
        if self.family.post_norm == "block":
            made = self.norm(made)
        if self.family.layer_scale:
            made = self.node("Mul", [made, self.vector(WIDTH, 1.0)])
        total = self.node("Add", [x, made])
        return self.norm(total) if self.family.post_norm == "sum" else total

    def begin(self) -> tuple[str, str]:
        """Return the first values of the stream, and the table of words."""
        family, table = self.family, ""
        if family.start == "words":
            table = self.constant(self.rng.normal(size=(WORDS, WIDTH)).astype(np.float32))
            x = self.node("Gather", [table, "x"])
        else:
            made = self.node("Conv", ["x", self.weight(WIDTH, 4, 3), self.bias(WIDTH)], pads=[1, 1])
            x = self.node("Transpose", [self.gelu(made)], perm=[0, 2, 1])
        if not family.rotary:
            places = self.rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)
            x = self.node("Add", [x, self.constant(places)])
        return x, table


def build_family(name: str, layers: int = 2) -> onnx.ModelProto:
    """Return a transformer of FAMILIES, from x, [1, TOKENS] or [1, 4, TOKENS], to y, [1, TOKENS, WORDS]."""
    family = FAMILIES[name]
    b = _Transformer(family)
    x, table = b.begin()
    if family.post_norm == "sum":
        x = b.norm(x)
    for _ in range(layers):
        x = b.block(x, b.attention(x if family.post_norm == "sum" else b.norm(x)))
        x = b.block(x, b.feed_forward(x if family.post_norm == "sum" else b.norm(x)))
    x = x if family.post_norm == "sum" else b.norm(x)
    weight = b.node("Transpose", [table]) if family.tied else b.constant(b.weight_values(WIDTH, WORDS))
    b.node("MatMul", [x, weight])
    b.nodes[-1].output[0] = "y"
    words = family.start == "words"
    shape, kind = ([1, TOKENS], TensorProto.INT64) if words else ([1, 4, TOKENS], TensorProto.FLOAT)
    graph = helper.make_graph(
        b.nodes,
        "family",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, TOKENS, WORDS])],
        [numpy_helper.from_array(value, name) for name, value in b.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def draw_feed(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs of such a transformer."""
    rng = np.random.default_rng(seed)
    if FAMILIES[name].start == "words":
        return {"x": rng.integers(0, WORDS, (1, TOKENS))}
    return {"x": rng.normal(size=(1, 4, TOKENS)).astype(np.float32)}

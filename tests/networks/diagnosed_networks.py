"""Six small float networks, with data as they see it: the sound beginning of every planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
from builders import Arrays, build


@dataclass(frozen=True)
class Network:
    """A float network and the source of its samples.

    Attributes:
        proto: the model.
        draw: returns one sample for a random generator.
        shown: the model that a user gives beside the quantized file, where it is not `proto`.
    """

    proto: onnx.ModelProto
    draw: Callable[[np.random.Generator], Arrays]
    shown: onnx.ModelProto | None = None

    @property
    def float_model(self) -> onnx.ModelProto:
        """The float model that a user has."""
        return self.shown or self.proto

    def feeds(self, count: int, seed: int) -> list[Arrays]:
        """Return `count` samples."""
        rng = np.random.default_rng(seed)
        return [self.draw(rng) for _ in range(count)]


class Weights:
    """Random weights of layers, sized so that values neither grow nor vanish."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.arrays: Arrays = {}

    def layer(self, name: str, *shape: int, fan_in: int | None = None) -> None:
        """Add a weight and the bias of its first axis; `fan_in` inputs make one output."""
        inputs = fan_in or int(np.prod(shape[1:]))
        values = self._rng.normal(size=shape) * np.sqrt(2 / inputs)
        self.arrays[f"{name}_w"] = values.astype(np.float32)
        self.arrays[f"{name}_b"] = (self._rng.normal(size=shape[0]) * 0.2).astype(np.float32)

    def layers(self, text: str) -> None:
        """Add layers in order, as in `stem 8 3 3 3, head 5 8`."""
        for name, *shape in (words.split() for words in text.split(",")):
            self.layer(name, *map(int, shape))

    def matrix(self, name: str, rows: int, columns: int) -> None:
        """Add the matrix of a MatMul and the bias behind it."""
        self.layer(name, columns, rows)
        self.arrays[f"{name}_w"] = np.ascontiguousarray(self.arrays[f"{name}_w"].T)


def image(rng: np.random.Generator) -> Arrays:
    """Return a smooth picture in 0..1 whose channels differ in mean, as photographs do."""
    coarse = rng.uniform(size=(1, 3, 4, 4)).repeat(4, 2).repeat(4, 3)
    fine = rng.normal(size=(1, 3, 16, 16)) * 0.08
    tint = np.array([0.35, 0.1, -0.15]).reshape(1, 3, 1, 1)
    return {"x": np.clip(coarse * 0.7 + tint + fine + 0.1, 0, 1).astype(np.float32)}


def normalized_image(rng: np.random.Generator) -> Arrays:
    """Return a picture from which a mean was taken, by a standard deviation."""
    given = np.float32([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    mean, deviation = given.reshape(2, 1, 3, 1, 1)
    return {"x": (image(rng)["x"] - mean) / deviation}


def tokens(rng: np.random.Generator) -> Arrays:
    """Return embedded tokens; few features are larger, as in trained embeddings."""
    size = np.ones(16, np.float32)
    size[[3, 11]] = 4
    return {"x": (rng.normal(size=(1, 8, 16)) * size).astype(np.float32)}


def frames(rng: np.random.Generator) -> Arrays:
    """Return a sequence of features that change slowly."""
    steps = rng.normal(size=(1, 10, 12)).cumsum(1) * 0.4
    return {"x": steps.astype(np.float32)}


def wave(rng: np.random.Generator) -> Arrays:
    """Return a sum of tones whose loudness differs from sample to sample."""
    time = np.arange(128) / 128
    tones = sum(np.sin(2 * np.pi * (rng.uniform(2, 30) * time + rng.uniform())) for _ in range(3))
    return {"x": (tones * rng.uniform(0.3, 1) / 3).reshape(1, 1, -1).astype(np.float32)}


def conv() -> Network:
    """Convolutions with a residual branch and a Concat; the user's file has BatchNormalization and names."""
    w = Weights(1)
    w.layer("stem", 8, 3, 3, 3)
    for name in ("one", "two", "left", "right"):
        w.layer(name, 8, 8, 3, 3)
    w.layers("last 12 16 1 1, head 10 12")
    text = """g (float[N,3,16,16] x) => (float[N,10] y) {
        [stem] s = Conv <pads=[1,1,1,1]> (x, stem_w, stem_b) [stem_relu] sr = Relu (s)
        [one] a = Conv <pads=[1,1,1,1]> (sr, one_w, one_b) [one_relu] ar = Relu (a)
        [two] b = Conv <pads=[1,1,1,1]> (ar, two_w, two_b) [sum] c = Add (b, sr) [sum_relu] cr = Relu (c)
        [left] l = Conv <pads=[1,1,1,1]> (cr, left_w, left_b) [left_relu] lr = Relu (l)
        [right] r = Conv <pads=[1,1,1,1]> (cr, right_w, right_b) [right_relu] rr = Relu (r)
        [both] j = Concat <axis=1> (lr, rr) [last] k = Conv (j, last_w, last_b) [last_relu] kr = Relu (k)
        [pool] p = GlobalAveragePool (kr) [flat] f = Flatten (p)
        [head] y = Gemm <transB=1> (f, head_w, head_b) }"""
    return Network(build(text, w.arrays), image, _with_batch_norm(text, w.arrays))


def _with_batch_norm(text: str, arrays: Arrays) -> onnx.ModelProto:
    """Return the same function with BatchNormalization behind the stem, and other names of all tensors."""
    rng = np.random.default_rng(7)
    factor = rng.uniform(0.5, 2, 8).astype(np.float32)
    mean, spread = rng.normal(size=8).astype(np.float32), rng.uniform(0.5, 2, 8).astype(np.float32)
    root = np.sqrt(spread + np.float32(1e-5))
    arrays = dict(arrays)
    bias = arrays.pop("stem_b")
    arrays["stem_w"] = arrays["stem_w"] * (root / factor).reshape(-1, 1, 1, 1)
    arrays |= {"bn_f": factor, "bn_b": bias - 0 * mean, "bn_m": mean * 0, "bn_v": spread}
    norm = "t = Conv <pads=[1,1,1,1]> (x, stem_w) [norm] s = BatchNormalization (t, bn_f, bn_b, bn_m, bn_v)"
    text = text.replace("s = Conv <pads=[1,1,1,1]> (x, stem_w, stem_b)", norm)
    proto = build(text, arrays)
    inner = {name for node in proto.graph.node for name in node.output} - {"y"}
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"/model/{name}" if name in inner else name for name in names]
        node.name = f"/model/{node.name}"
    return proto


def depthwise() -> Network:
    """Inverted residuals with Clip(0, 6), on pictures with a mean taken away."""
    w = Weights(2)
    w.layer("stem", 8, 3, 3, 3)
    for name in ("a", "b"):
        w.layer(f"{name}_up", 16, 8, 1, 1)
        w.layer(f"{name}_dw", 16, 1, 3, 3)
        w.layer(f"{name}_down", 8, 16, 1, 1)
    w.layer("head", 10, 8)
    body, before = "", "sr"
    for n in ("a", "b"):
        body += f"""
            [{n}_up] {n}1 = Conv ({before}, {n}_up_w, {n}_up_b) [{n}_up_clip] {n}2 = Clip ({n}1, low, high)
            [{n}_dw] {n}3 = Conv <pads=[1,1,1,1], group=16> ({n}2, {n}_dw_w, {n}_dw_b)
            [{n}_dw_clip] {n}4 = Clip ({n}3, low, high)
            [{n}_down] {n}5 = Conv ({n}4, {n}_down_w, {n}_down_b) [{n}_sum] {n}6 = Add ({n}5, {before})"""
        before = f"{n}6"
    text = f"""g (float[N,3,16,16] x) => (float[N,10] y) {{
        [stem] s = Conv <pads=[1,1,1,1], strides=[2,2]> (x, stem_w, stem_b)
        [stem_clip] sr = Clip (s, low, high) {body}
        [pool] p = GlobalAveragePool ({before}) [flat] f = Flatten (p)
        [head] y = Gemm <transB=1> (f, head_w, head_b) }}"""
    ends = {"low": np.float32(0), "high": np.float32(6)}
    return Network(build(text, w.arrays | ends), normalized_image)


def transformer() -> Network:
    """One block: attention of one head and a perceptron, each behind LayerNormalization."""
    w = Weights(3)
    for name in ("q", "k", "v", "o"):
        w.matrix(name, 16, 16)
    w.matrix("up", 16, 32)
    w.matrix("down", 32, 16)
    w.matrix("head", 16, 6)
    ones = {"g1": np.ones(16, np.float32), "g2": np.ones(16, np.float32), "n1": np.zeros(16, np.float32)}
    numbers = {"root": np.float32(4), "half": np.float32(0.5), "sq": np.float32(2**0.5), "u": np.float32(1)}
    sources = {**dict.fromkeys("qkv", "h"), "o": "att", "up": "h2", "down": "gelu", "head": "x2"}
    dense = {
        name: f"[{name}] {name}_m = MatMul ({source}, {name}_w) "
        f"[{name}_add] {name}_o = Add ({name}_m, {name}_b)"
        for name, source in sources.items()
    }
    text = f"""g (float[N,8,16] x) => (float[N,8,6] y) {{
        [norm1] h = LayerNormalization <axis=-1> (x, g1, n1)
        {dense["q"]} {dense["k"]} {dense["v"]}
        [turn] kt = Transpose <perm=[0,2,1]> (k_o) [scores] sc = MatMul (q_o, kt) [scale] ss = Div (sc, root)
        [soft] pr = Softmax <axis=-1> (ss) [mix] att = MatMul (pr, v_o)
        {dense["o"]} [skip1] x1 = Add (x, o_o)
        [norm2] h2 = LayerNormalization <axis=-1> (x1, g2, n1)
        {dense["up"]}
        [over] ov = Div (up_o, sq) [erf] er = Erf (ov) [plus] pl = Add (er, u)
        [times] ti = Mul (up_o, pl) [half] gelu = Mul (ti, half)
        {dense["down"]} [skip2] x2 = Add (x1, down_o)
        {dense["head"].replace("head_o = Add", "y = Add")} }}"""
    return Network(build(text, w.arrays | ones | numbers), tokens)


def detector() -> Network:
    """A backbone, an upsampled branch, and two outputs: scores and boxes."""
    w = Weights(4)
    w.layers("stem 8 3 3 3, deep 12 8 3 3, deeper 12 12 3 3, merge 12 20 3 3, score 4 12 1 1, box 4 12 1 1")
    text = """g (float[N,3,16,16] x) => (float[N,4,8,8] scores, float[N,4,8,8] boxes) {
        [stem] a = Conv <pads=[1,1,1,1], strides=[2,2]> (x, stem_w, stem_b) [stem_relu] ar = Relu (a)
        [deep] b = Conv <pads=[1,1,1,1], strides=[2,2]> (ar, deep_w, deep_b) [deep_relu] br = Relu (b)
        [deeper] c = Conv <pads=[1,1,1,1]> (br, deeper_w, deeper_b) [deeper_relu] cr = Relu (c)
        [up] u = Resize <mode="nearest"> (cr, , zoom)
        [both] j = Concat <axis=1> (u, ar)
        [merge] m = Conv <pads=[1,1,1,1]> (j, merge_w, merge_b) [merge_relu] mr = Relu (m)
        [score] s = Conv (mr, score_w, score_b) [sigmoid] scores = Sigmoid (s)
        [box] boxes = Conv (mr, box_w, box_b) }"""
    zoom = {"zoom": np.array([1, 1, 2, 2], np.float32)}
    return Network(build(text, w.arrays | zoom), image)


def recurrent() -> Network:
    """A dense layer, an LSTM, and two dense layers."""
    w = Weights(5)
    w.matrix("front", 12, 16)
    w.matrix("mid", 8, 16)
    w.matrix("head", 16, 4)
    rng = np.random.default_rng(50)
    sizes = {"lw": ((1, 32, 16), 0.25), "lr": ((1, 32, 8), 0.25), "lb": ((1, 64), 0.1)}
    lstm = {name: rng.normal(size=shape) * factor for name, (shape, factor) in sizes.items()}
    text = """g (float[N,10,12] x) => (float[N,10,4] y) {
        [front] a = MatMul (x, front_w) [front_add] b = Add (a, front_b) [front_relu] c = Relu (b)
        [turn] d = Transpose <perm=[1,0,2]> (c) [lstm] e = LSTM <hidden_size=8> (d, lw, lr, lb)
        [one] f = Squeeze (e, axis) [back] g = Transpose <perm=[1,0,2]> (f)
        [mid] h = MatMul (g, mid_w) [mid_add] i = Add (h, mid_b) [mid_relu] k = Relu (i)
        [head] l = MatMul (k, head_w) [head_add] y = Add (l, head_b) }"""
    arrays = {name: values.astype(np.float32) for name, values in lstm.items()}
    return Network(build(text, w.arrays | arrays | {"axis": np.array([1])}), frames)


def audio() -> Network:
    """Gated convolutions over time with a residual sum, and one that doubles the time."""
    w = Weights(6)
    w.layer("stem", 8, 1, 9)
    for name in ("gate", "value", "mid"):
        w.layer(name, 8, 8, 5)
    w.layer("out", 4, 8, 3)
    text = """g (float[N,1,128] x) => (float[N,4,64] y) {
        [stem] a = Conv <pads=[4,4], strides=[2]> (x, stem_w, stem_b) [leaky] b = LeakyRelu (a)
        [gate] c = Conv <pads=[2,2]> (b, gate_w, gate_b) [sig] d = Sigmoid (c)
        [value] e = Conv <pads=[2,2]> (b, value_w, value_b) [tanh] f = Tanh (e)
        [times] h = Mul (d, f) [mid] i = Conv <pads=[2,2]> (h, mid_w, mid_b)
        [sum] k = Add (i, b) [relu] l = Relu (k)
        [out] y = Conv <pads=[1,1]> (l, out_w, out_b) }"""
    return Network(build(text, w.arrays), wave)


BUILDERS = {one.__name__: one for one in (conv, depthwise, transformer, detector, recurrent, audio)}
NETWORKS = tuple(BUILDERS)


@cache
def network(name: str) -> Network:
    """Return a network by its name."""
    return BUILDERS[name]()

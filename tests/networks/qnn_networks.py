"""Small networks of the kinds that run on an HTP, for the tests of target qnn."""

from __future__ import annotations

import numpy as np
import onnx
from builders import build, weights


def residual() -> onnx.ModelProto:
    """Convolutions with a residual sum, a pooling and a classifier."""
    return build(
        """g (float[1,8,8,8] x) => (float[1,5] y) {
            [c0] a = Conv <pads = [1,1,1,1]> (x, w0, b0) [r0] r = Relu (a)
            [c1] c = Conv <pads = [1,1,1,1]> (r, w1, b1) [sum] s = Add (c, r) [r1] t = Relu (s)
            [pool] m = MaxPool <kernel_shape = [2,2], strides = [2,2]> (t) [mean] p = GlobalAveragePool (m)
            [flat] f = Flatten (p) [fc] y = Gemm <transB = 1> (f, w2, b2) }""",
        {
            "w0": weights(8, 8, 3, 3), "b0": weights(8), "w1": weights(8, 8, 3, 3, seed=1),
            "b1": weights(8, seed=1), "w2": weights(5, 8), "b2": weights(5),
        },
    )  # fmt: skip


def detector() -> onnx.ModelProto:
    """A part of a detector: SiLU, a Split whose halves a Concat joins, a Resize and a padded MaxPool."""
    return build(
        """g (float[1,8,8,8] x) => (float[1,8,16,16] y, float[1,4,8,8] k) {
            [c0] a = Conv <pads = [1,1,1,1]> (x, w0, b0) [s0] s = Sigmoid (a) [m0] m = Mul (a, s)
            [split] p, q = Split <axis = 1> (m, half) [c1] c = Conv (p, w1)
            [pool] k = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (c)
            [join] z = Concat <axis = 1> (k, q, p) [up] u = Resize <mode = "nearest"> (z, none, scales)
            [c2] y = Conv (u, w2) }""",
        {
            "w0": weights(8, 8, 3, 3), "b0": weights(8), "w1": weights(4, 4, 1, 1), "half": np.array([4, 4]),
            "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32),
            "w2": weights(8, 12, 1, 1),
        },
    )  # fmt: skip


def transformer() -> onnx.ModelProto:
    """A block with attention, LayerNormalization, Softmax and Gelu, behind a table of words."""
    return build(
        """g (int64[2,4] words) => (float[2,4,8] y) {
            [look] x = Gather (table, words) [norm] n = LayerNormalization <axis = -1> (x, g, h)
            [q] q0 = MatMul (n, wq) [bias] q1 = Add (q0, bq) [k] k0 = MatMul (n, wk)
            [turn] k1 = Transpose <perm = [0,2,1]> (k0) [v] v0 = MatMul (n, wv) [s] s0 = MatMul (q1, k1)
            [scale] s1 = Mul (s0, root) [soft] s2 = Softmax <axis = -1> (s1) [o] o0 = MatMul (s2, v0)
            [skip] a = Add (o0, x) [up] u = MatMul (a, w1) [gelu] e = Gelu (u) [down] d = MatMul (e, w2)
            [out] y = Add (d, a) }""",
        {
            "table": weights(16, 8), "g": 1 + weights(8), "h": weights(8, seed=1), "wq": weights(8, 8),
            "bq": weights(8), "wk": weights(8, 8, seed=1), "wv": weights(8, 8, seed=2),
            "root": np.float32(0.35), "w1": weights(8, 16), "w2": weights(16, 8),
        },
        opset=20,
    )  # fmt: skip


def depthwise() -> onnx.ModelProto:
    """An inverted residual with a gate: depthwise convolution, Clip, HardSwish, Sigmoid and Tanh."""
    return build(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            [c0] a = Conv (x, w0, b0) [clip] r = Clip (a, low, high)
            [dw] c = Conv <group = 8, pads = [1,1,1,1]> (r, w1, b1) [hs] h = HardSwish (c)
            [mean] m = ReduceMean <axes = [2,3], keepdims = 1> (h) [c2] g = Conv (m, w2)
            [gate] s = Sigmoid (g) [mul] u = Mul (h, s) [c3] v = Conv (u, w3) [sum] t = Add (v, x)
            [end] y = Tanh (t) }""",
        {
            "w0": weights(8, 4, 1, 1), "b0": weights(8), "low": np.float32(0), "high": np.float32(6),
            "w1": weights(8, 1, 3, 3), "b1": weights(8, seed=1), "w2": weights(8, 8, 1, 1),
            "w3": weights(4, 8, 1, 1),
        },
    )  # fmt: skip


def mlp() -> onnx.ModelProto:
    """Gemms with Relus, the last behind a Reshape and in front of an output that is read too."""
    return build(
        """g (float[4,16] x) => (float[8,8] l, float[8,8] y) {
            [f0] a = Gemm (x, w0, b0) [r0] r = Relu (a) [f1] c = Gemm (r, w1, b1)
            [move] d = Reshape (c, shape) [r1] e = Relu (d) [f2] l = Gemm (e, w2)
            [soft] y = Softmax <axis = -1> (l) }""",
        {
            "w0": weights(16, 16), "b0": weights(16), "w1": weights(16, 16, seed=1),
            "b1": weights(16, seed=1), "shape": np.array([8, 8]), "w2": weights(8, 8),
        },
    )  # fmt: skip


NETWORKS = {make.__name__: make for make in (residual, detector, transformer, depthwise, mlp)}

"""Models with bodies: If, Loop, Scan, one in another, and weights inside them."""

from __future__ import annotations

import numpy as np
import onnx
from builders import Staged, build, feed_for, if_body, planned, weights

from onnxfq.graph.io.load import load
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.observe import collect_statistics

W = {"w": weights(4, 4), "w2": weights(4, 4, seed=1)}


GO = "go = Constant <value = bool {1}> ()"


def loop() -> onnx.ModelProto:
    """Two MatMuls in a Loop that carries a state and scans an output."""
    return build(
        f"""g (float[N,4] x, int64 n) => (float[N,4] y, float[K,N,4] all) {{ {GO}
            [loop] y, all = Loop (n, go, x) <
                body = b (int64 i, bool c, float[N,4] s) => (bool c2, float[N,4] s2, float[N,4] o) {{
                    c2 = Identity (c) [first] m = MatMul (s, w) t = Tanh (m)
                    [second] u = MatMul (t, w2) s2 = Add (u, s) o = Identity (u) }}> }}""",
        W,
    )


def scan() -> onnx.ModelProto:
    """Two MatMuls in a Scan with a state, a scanned input and a scanned output."""
    return build(
        """g (float[4] s0, float[T,4] xs) => (float[4] s, float[T,4] ys) {
            [scan] s, ys = Scan <num_scan_inputs = 1, body = b (float[4] si, float[4] xi) =>
                (float[4] so, float[4] yo) { a = Add (si, xi) [first] m = MatMul (a, w) so = Tanh (m)
                [second] yo = MatMul (so, w2) }> (s0, xs) }""",
        W,
    )


def nested() -> onnx.ModelProto:
    """An If in a Loop; its branches name their tensors and nodes alike."""
    return build(
        f"""g (float[N,4] x, int64 n) => (float[N,4] y) {{ {GO}
            [loop] y = Loop (n, go, x) <body = b (int64 i, bool c, float[N,4] s) =>
                (bool c2, float[N,4] s2) {{
                c2 = Identity (c) one = Constant <value = int64 {{1}}> () odd = Equal (i, one)
                [choose] s2 = If (odd) <
                    then_branch = t () => (float[N,4] p) {{ q = Relu (s) [mm] p = MatMul (q, w) }},
                    else_branch = e () => (float[N,4] p) {{ q = Neg (s) [mm] p = MatMul (q, w2) }}> }}> }}""",
        W,
    )


def own_weights() -> onnx.ModelProto:
    """Branches that hold their weights themselves: as an initializer, as a Constant, behind a Reshape."""
    proto = build(
        """g (float[N,4] x, bool cond) => (float[N,4] y) {
            [choose] y = If (cond) <
                then_branch = yes () => (float[N,4] t) { shape = Constant <value = int64[2] {4, 4}> ()
                    flat = Constant <value = float[16] {1,2,3,4,5,6,7,8,-1,-2,-3,-4,-5,-6,-7,-8}> ()
                    v = Reshape (flat, shape) [inside] t = MatMul (x, v) },
                else_branch = no () => (float[N,4] e) { [other] e = MatMul (x, v) }> }"""
    )
    body = proto.graph.node[0].attribute[1].g
    body.initializer.append(onnx.numpy_helper.from_array(W["w"], "v"))
    return proto


MODELS = {
    "if": (if_body, {"cond": np.asarray(True)}),
    "else": (if_body, {"cond": np.asarray(False)}),
    "loop": (loop, {"n": np.asarray(3)}),
    "scan": (scan, {}),
    "nested": (nested, {"n": np.asarray(3)}),
    "own weights": (own_weights, {"cond": np.asarray(True)}),
    "own weights, else": (own_weights, {"cond": np.asarray(False)}),
}


def staged(name: str, recipe: str = "tensorrt-int8") -> tuple[onnx.ModelProto, Staged]:
    """Return a model and its stages."""
    make, feed = MODELS[name]
    proto = make()
    model, feed = load(proto), feed_for(proto) | feed
    plan = planned(proto, recipe)
    statistics = collect_statistics(model, plan, [feed])
    return proto, Staged(model, plan, statistics, calibrate(model, plan, statistics), feed)

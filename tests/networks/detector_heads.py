"""Detectors whose output joins boxes in pixels and scores behind a sigmoid, in the forms of exporters."""

from __future__ import annotations

import numpy as np
import onnx
from builders import build, build_used, scalars, weights

CONSTANTS = {
    "w": weights(16, 16) * np.float32(0.3),
    "grid": np.arange(8, dtype=np.float32).reshape(1, 1, 8),
    **scalars(np.float32, stride=32, prior=6),
    **scalars(np.int64, box=[0, 4, 8], far_box=[0, 4, 4], score=[0, 3, 8], far_score=[0, 3, 4]),
    "w4": weights(16, 32, seed=4),
    "w3": weights(16, 24, seed=3),
    "v4": weights(16, 16, seed=5),
    "v3": weights(16, 12, seed=6),
}
NEAR = """a = MatMul (x, w) m = MatMul (a, w4) r = Reshape (m, box) boxes = Mul (r, stride)
    n = MatMul (a, w3) s = Reshape (n, score) t = Sub (s, prior) scores = Sigmoid (t)"""
"""Boxes [N, 4, 8] in pixels and scores [N, 3, 8]."""

FAR = """o = MatMul (a, v4) p = Reshape (o, far_box) far_boxes = Mul (p, stride)
    q = MatMul (a, v3) u = Reshape (q, far_score) far_scores = Sigmoid (u)"""
"""The same of another level, with 4 places."""

PLACES: dict[str, tuple[str, str, list[list[str]]]] = {
    "side by side": ("float[N,7,8] y", "y = Concat <axis = 1> (boxes, scores)", [["boxes"], ["scores"]]),
    "from the end": ("float[N,7,8] y", "y = Concat <axis = -2> (scores, boxes)", [["scores"], ["boxes"]]),
    "turned": (
        "float[N,8,7] y",
        "c = Concat <axis = 1> (boxes, scores) y = Transpose <perm = [0, 2, 1]> (c)",
        [["boxes"], ["scores"]],
    ),
    "levels of both": (
        "float[N,12,7] y",
        f"""{FAR} c = Concat <axis = 1> (boxes, scores) d = Concat <axis = 1> (far_boxes, far_scores)
            e = Concat <axis = 2> (c, d) y = Transpose <perm = [0, 2, 1]> (e)""",
        [["boxes", "far_boxes"], ["scores", "far_scores"]],
    ),
    "both of levels": (
        "float[N,7,12] y",
        f"""{FAR} c = Concat <axis = 2> (boxes, far_boxes) d = Concat <axis = 2> (scores, far_scores)
            y = Concat <axis = 1> (c, d)""",
        [["boxes", "far_boxes"], ["scores", "far_scores"]],
    ),
    "levels of scores": (
        "float[N,12,3] y",
        f"""{FAR} c = Transpose <perm = [0, 2, 1]> (scores) d = Transpose <perm = [0, 2, 1]> (far_scores)
            y = Concat <axis = 1> (c, d)""",
        [["scores"], ["far_scores"]],
    ),
}
"""By form: the output, nodes behind the heads, and the inner tensors that each part holds."""


def detector(form: str) -> onnx.ModelProto:
    """Return the network of one form."""
    output, nodes, _ = PLACES[form]
    return head(output, nodes)


def head(output: str, nodes: str) -> onnx.ModelProto:
    """Return a network of boxes and scores with `nodes` behind them, and the constants that it reads."""
    return build_used(f"g (float[N,16] x) => ({output}) {{ {NEAR} {nodes} }}", CONSTANTS)


def one_tensor() -> onnx.ModelProto:
    """Return a network whose only product makes boxes and scores, [N, 7, 8], which no Concat joins."""
    sizes = np.asarray([640, 640, 640, 640, 1, 1, 1], np.float32).reshape(1, 7, 1)
    text = """g (float[N,16] x) => (float[N,7,8] y) {
        a = MatMul (x, w) r = Relu (a) m = MatMul (r, w7) s = Reshape (m, all) y = Mul (s, sizes) }"""
    arrays = {"w": CONSTANTS["w"], "w7": weights(16, 56, seed=7), "all": np.int64([0, 7, 8]), "sizes": sizes}
    return build(text, arrays)

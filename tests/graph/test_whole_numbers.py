"""Floats that become sizes, indices and lengths have no pairs and no half type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, weights

import onnxfq
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.patterns.whole_numbers import find_whole_numbers
from onnxfq.runtime.session import Session

RESIZED = """g (float[1,4,H,W] x) => (float[1,4,A,B] y) {
    c = Conv (x, w) s = Shape (c) hw = Slice (s, two, four) f = Cast <to = 1> (hw) m = Mul (f, factor)
    [down] d = Floor (m) i = Cast <to = 7> (d) nc = Slice (s, zero, two) size = Concat <axis = 0> (nc, i)
    r = Resize <mode = "linear"> (c, , , size) y = Conv (r, w) }"""
VOICE = """g (float[1,T,8] x) => (float[1,8,F] y) {
    h = MatMul (x, w) g0 = MatMul (h, v) e = Exp (g0) [round] rd = Ceil (e) sq = Squeeze (rd, axis)
    cs = CumSum (sq, one) t = ReduceMax <keepdims = 0> (cs) ti = Cast <to = 7> (t) fr = Range (z, ti, one)
    ff = Cast <to = 1> (fr) f1 = Unsqueeze (ff, both) c1 = Unsqueeze (cs, axis) lt = Less (f1, c1)
    al = Cast <to = 1> (lt) ht = Transpose <perm = [0,2,1]> (h) y = MatMul (ht, al) }"""
CONSTANTS = {
    RESIZED: {
        "w": weights(4, 4, 1, 1), "zero": np.int64([0]), "two": np.int64([2]), "four": np.int64([4]),
        "factor": np.float32(1.7),
    },
    VOICE: {
        "w": weights(8, 8), "v": weights(8, 1) + 0.4, "axis": np.int64([2]), "both": np.int64([0, 1]),
        "one": np.int64(1), "z": np.int64(0),
    },
}  # fmt: skip
FEEDS = {
    RESIZED: [{"x": weights(1, 4, 8 + at % 7, 9 + at % 5, seed=at)} for at in range(10)],
    VOICE: [{"x": weights(1, 9 + at, 8, seed=at)} for at in range(10)],
}


@pytest.mark.parametrize("recipe", ["qnn-int8", "qnn-a16w8", "onnxruntime-int8", "openvino-int8"])
@pytest.mark.parametrize("text", [RESIZED, VOICE], ids=["resized", "voice"])
def test_the_lengths_are_those_of_the_float_model(text: str, recipe: str) -> None:
    """Every output has the shape that it has in float, and the pairs stop in front of the arithmetic."""
    proto = build(text, CONSTANTS[text])
    model = onnxfq.load(proto)
    plan = onnxfq.make_plan(model, onnxfq.load_recipe(recipe))
    statistics = onnxfq.collect_statistics(model, plan, FEEDS[text])
    qdq = onnxfq.insert_qdq(model, plan, onnxfq.calibrate(model, plan, statistics))
    if text is RESIZED:  # a voice has its durations from a product, and they may round apart
        sessions = [Session(one, 1, exact=True) for one in (proto, qdq)]
        for feed in FEEDS[text]:
            want, got = (one.run(feed)[0].shape for one in sessions)
            assert got == want
    placed = {placement.tensor for placement in plan.placements}
    assert placed.isdisjoint(find_whole_numbers(GraphIndex.of_model(proto)).tensors)


def test_a_half_type_ends_there_too() -> None:
    """The operators that compute a length stay in float32."""
    model = onnxfq.load(build(VOICE, CONSTANTS[VOICE]))
    cast = onnxfq.cast(model.proto, FEEDS[VOICE], floats=onnxfq.FloatOptions("fp16"))
    kept = {one.name for one in cast.floats.nodes}
    assert {node.name for node in model.proto.graph.node if node.op_type in ("Exp", "Ceil", "CumSum")} <= kept


def test_other_numbers_are_not_counted() -> None:
    """Colours, masks and what a choice follows keep their pairs."""
    proto = build(
        """g (float[1,8] x) => (uint8[1,8] y, int64[1] n) {
            a = MatMul (x, w) b = Relu (a) y = Cast <to = 2> (b) n = ArgMax <axis = 1, keepdims = 0> (a) }""",
        {"w": weights(8, 8)},
    )
    found = find_whole_numbers(GraphIndex.of_model(onnx.shape_inference.infer_shapes(proto)))
    assert not found.nodes and not found.tensors

"""Lengths: sums over open ones have a note, and floats that become lengths have no pairs and no half type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.patterns.open_sums import explain_open_sums
from onnxfq.graph.patterns.whole_numbers import find_whole_numbers
from onnxfq.runtime.session import Session

AXIS = {"axes": np.array([1])}
LENGTHS = {
    "ReduceSum": "y = ReduceSum <keepdims = 0> (x, axes)",
    "ReduceMean": "y = ReduceMean <axes = [1], keepdims = 0> (x)",
    "ReduceL2 of all": "y = ReduceL2 <keepdims = 0> (x)",
    "Softmax": "y = Softmax <axis = 1> (x)",
    "MatMul": "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (t, x)",
    "GlobalAveragePool": "t = Transpose <perm = [0, 2, 1]> (x) y = GlobalAveragePool (t)",
    "attention": """t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) p = Softmax <axis = -1> (s)
        y = MatMul (p, x)""",
}
ALONE = {
    "Softmax of channels": "y = Softmax <axis = -1> (x)",
    "MatMul of channels": "y = MatMul (x, w)",
    "ReduceMean of channels": "y = ReduceMean <axes = [2]> (x)",
    "Relu": "y = Relu (x)",
}


def model(body: str, shape: str = "N,T,8") -> onnx.ModelProto:
    """A model of these nodes, with inferred shapes."""
    proto = build(f"g (float[{shape}] x) => (float[] y) {{ {body} }}", {"w": weights(8, 8), **AXIS})
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(proto)


def sizes(*shapes: tuple[int, ...]) -> dict[str, list[set[int]]]:
    """Sizes of the axes of `x` in feeds of these shapes."""
    return {"x": [set(axis) for axis in zip(*shapes, strict=True)]}


@pytest.mark.parametrize("body", LENGTHS.values(), ids=LENGTHS)
def test_a_sum_over_an_open_length_has_a_note(body: str) -> None:
    """It names the first tensor and the length; not where lengths differ, or where none is open."""
    (note,) = (line for line in explain_open_sums(model(body), sizes((1, 16, 8))) if "length" in line)
    assert "has 16: other lengths were not measured" in note
    assert ("'x'" in note) == ("Transpose" not in body) or "'t'" in note
    assert not [n for n in explain_open_sums(model(body), sizes((1, 16, 8), (1, 9, 8))) if "length" in n]
    assert not [n for n in explain_open_sums(model(body, "N,16,8"), sizes((1, 16, 8))) if "length" in n]


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE)
def test_other_operators_have_none(body: str) -> None:
    """They mix neither positions nor samples, and give the same for any length."""
    assert not explain_open_sums(model(body), sizes((1, 16, 8)))


@pytest.mark.parametrize("body", ["y = ReduceMean <axes = [0]> (x)", "y = Softmax <axis = 0> (x)"])
def test_a_sum_over_the_batch_has_a_note(body: str) -> None:
    """Samples that know of each other are measured in one batch size alone."""
    (note,) = explain_open_sums(model(body), sizes((1, 16, 8)))
    assert "samples of a batch, of which 1 ran together: other batches were not measured" in note


def test_the_result_has_the_notes() -> None:
    """`quantize` tells them; of data with several lengths it does not."""
    proto = model("t = MatMul (x, w) p = Relu (t) r = ReduceSum <keepdims = 0> (p, axes) y = MatMul (r, w)")
    random = np.random.default_rng(0)
    for lengths, count in (([16], 1), ([8, 16], 0)):
        data = [
            {"x": random.normal(size=(1, lengths[at % len(lengths)], 8)).astype("f4")} for at in range(40)
        ]
        notes = plain_quantize(proto, data).staged.notes
        assert sum("other lengths were not measured" in note for note in notes) == count


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

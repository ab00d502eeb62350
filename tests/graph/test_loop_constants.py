"""Constants that Loop and Scan hand on unchanged are read directly, and nothing else of a loop changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import Arrays, assert_same_outputs, build, weights

import onnxfq
from onnxfq.graph.external.scratch_file import Scratch, weights_stored_in
from onnxfq.graph.model import list_graphs
from onnxfq.runtime.session import Session
from onnxfq.stages.observe import collect_statistics

SQUARE: Arrays = {"w": weights(8, 8) / 4, "n": np.asarray(3), "go": np.asarray(True)}
LOOP = """g (float[N,8] x) => (float[N,8] y) { y, k = Loop (n, go, x, w) <
    body = b (int64 i, bool c, float[N,8] s, float[8,8] u) => (bool c2, float[N,8] t, float[8,8] v) {
        c2 = Identity (c) [mm] m = MatMul (s, u) t = Tanh (m) v = Identity (u) }> }"""
FINAL = LOOP.replace("=> (float[N,8] y)", "=> (float[N,8] y, float[8,8] k)")
SCAN = """g (float[8] x, float[4,8] xs) => (float[8] y, float[4,8] all) {
    y, k, all = Scan <num_scan_inputs = 1, body = b (float[8] s, float[8,8] u, float[8] one)
        => (float[8] t, float[8,8] u2, float[8] out) {
            [mm] m = MatMul (s, u) a = Add (m, one) t = Tanh (a) u2 = Identity (u) out = Identity (t) }>
        (x, w, xs) }"""
NESTED = """g (float[N,8] x) => (float[N,8] y) { y, k = Loop (n, go, x, w) <
    body = b (int64 i, bool c, float[N,8] s, float[8,8] u) => (bool c2, float[N,8] t, float[8,8] v) {
        c2 = Identity (c) v = Identity (u) t, k2 = Loop (n, c, s, u) <
            body = d (int64 j, bool e, float[N,8] p, float[8,8] q) => (bool e2, float[N,8] r, float[8,8] z) {
                e2 = Identity (e) [mm] m = MatMul (p, q) r = Tanh (m) z = Identity (q) }> }> }"""
# Values that stay: one changes, one is fed, one is also collected in each step.
CHANGED = LOOP.replace("v = Identity (u)", "v = Add (u, u)")
FED = LOOP.replace("(float[N,8] x)", "(float[N,8] x, float[8,8] w)")
COLLECTED = LOOP.replace("float[8,8] v)", "float[8,8] v, float[8,8] u)").replace("y, k =", "y, k, all =")


def products(proto: onnx.ModelProto) -> list[str]:
    """Return the second inputs of all MatMuls."""
    return [n.input[1] for g in list_graphs(proto.graph) for n in g.node if n.op_type == "MatMul"]


@pytest.mark.parametrize("text", [LOOP, FINAL, SCAN, NESTED], ids=["loop", "final", "scan", "nested"])
@pytest.mark.parametrize("steps", [0, 3])
def test_the_body_reads_the_constant(text: str, steps: int) -> None:
    """The bits of ONNX Runtime stay, the product has a weight, and int8 stores it as integers alone."""
    proto = build(text, SQUARE | {"n": np.asarray(steps)})
    loaded = onnxfq.load(proto)
    assert products(loaded.proto) == ["w"] and any("a loop only hands on" in note for note in loaded.notes)
    rng = np.random.default_rng(0)
    sizes = {"x": (8,) if text is SCAN else (4, 8), "xs": (4, 8)}
    names = [value.name for value in proto.graph.input]
    feed = {name: rng.normal(size=sizes[name]).astype(np.float32) for name in names}
    assert_same_outputs(proto, loaded.proto, feed)
    if steps:
        made = onnxfq.quantize(proto, [feed], recipe="tensorrt-int8-weights").qdq
        floats = {t.name for t in made.graph.initializer if t.data_type == 1 and len(t.dims) == 2}
        assert floats == ({"w"} if text is FINAL else set())


def test_a_loop_keeps_an_output() -> None:
    """A loop without other values keeps the last one."""
    text = """g (float[N,8] x) => (float[N,8] y) { p, q = Loop (n, go, w, w2) <
        body = b (int64 i, bool c, float[8,8] s, float[8,8] u) => (bool c2, float[8,8] t, float[8,8] v) {
            c2 = Identity (c) t = Identity (s) v = Identity (u) }> m = MatMul (x, p) y = MatMul (m, q) }"""
    loaded = onnxfq.load(build(text, SQUARE | {"w2": weights(8, 8, seed=1)})).proto
    (loop,) = (node for node in loaded.graph.node if node.op_type == "Loop")
    assert len(loop.input) == 3 and len(loop.output) == 1
    feed = {"x": weights(2, 8, seed=2)}
    w, w2 = SQUARE["w"], weights(8, 8, seed=1)
    np.testing.assert_allclose(Session(loaded).run(feed)[0], feed["x"] @ w @ w2, rtol=1e-4)  # another order


@pytest.mark.parametrize("text", [CHANGED, FED, COLLECTED], ids=["changed", "fed", "collected"])
def test_other_values_stay_carried(text: str) -> None:
    """The loop keeps its inputs."""
    constants = {name: value for name, value in SQUARE.items() if name != "w" or text is not FED}
    loaded = onnxfq.load(build(text, constants))
    assert products(loaded.proto) == ["u"] and not any("a loop" in note for note in loaded.notes)


def test_weights_in_a_scratch_file_do_not_change_what_is_observed() -> None:
    """The empty state of an observer in a loop stays in the model that a session reads."""
    model, feeds = onnxfq.load(build(LOOP, SQUARE)), [{"x": weights(4, 8, seed=seed)} for seed in range(3)]
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8"))
    wanted = collect_statistics(model, plan, feeds)
    with weights_stored_in(Scratch()):
        found = collect_statistics(model, plan, feeds)
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, statistics in wanted.tensors.items():
        np.testing.assert_array_equal(found[name].bins, statistics.bins)

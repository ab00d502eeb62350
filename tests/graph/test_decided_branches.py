"""An If that constants decide becomes its branch; a constant that a loop hands on is read directly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import (
    Arrays,
    assert_same_outputs,
    build,
    build_used,
    ends_process,
    run_as_written,
    scalars,
    weights,
)
from onnx import parser
from onnx.reference import ReferenceEvaluator

import onnxfq
from onnxfq.errors import DataError
from onnxfq.graph.external.scratch_file import Scratch, weights_stored_in
from onnxfq.graph.model import bodies, list_graphs, list_nodes
from onnxfq.runtime.plain_session import open_plain_session
from onnxfq.runtime.session import Session
from onnxfq.stages.observe import collect_statistics
from onnxfq.targets.profiles import fix_sizes
from onnxfq.targets.target import BuildOptions

VALUES: Arrays = scalars(np.int64, two=[2], at=2, one=1, none=[0, 0], pair=2, flat=[-1], zero=0)
VALUES |= scalars(np.bool_, yes=True, yes1=[True])
SQUEEZE = """If (c) <then_branch = g1 () => (float[A,B] a) { a = Squeeze (x, two) },
    else_branch = g2 () => (float[C,D,E] b) { b = Identity (x) }>"""
SIZE = "s = Shape (x) n = Gather (s, at) c = Equal (n, one)"
# torch writes this for `squeeze` and for layers that take one sample or a batch.
DECIDED = {
    "a constant": f"(float[N,4,1] x) {{ c = Identity (yes) t = {SQUEEZE}",
    "a size": f"(float[N,4,1] x) {{ {SIZE} t = {SQUEEZE}",
    "the other branch": f"""(float[N,4,3] x) {{ {SIZE}
        t = If (c) <then_branch = g1 () => (float[A,B,C] a) {{ a = Relu (x) }},
                    else_branch = g2 () => (float[C,D,E] b) {{ b = Neg (x) }}>""",
    "computed ends": f"""(float[2,4,1] x0) {{
        m = Concat <axis = 0> (none, none, none) x = Pad (x0, m) {SIZE} t = {SQUEEZE}""",
    "a branch of a branch": f"""(float[N,4,1] x) {{ {SIZE} z = {SQUEEZE}
        r = Shape (z) k = Size (r) d = Equal (k, pair)
        t = If (d) <then_branch = g3 () => (float[F,G] f) {{ f = Relu (z) }},
                    else_branch = g4 () => (float[H,I] h) {{ h = Neg (z) }}>""",
    "one result twice": """(float[N,4,1] x) { c = Identity (yes)
        u, v = If (c) <then_branch = g1 () => (float[A,4,1] a, float[A,4,1] a) { a = Relu (x) },
            else_branch = g2 () => (float[A,4,1] b, float[A,4,1] d) { b = Neg (x) d = Abs (x) }>
        t = Sub (v, u)""",
}
OPEN = {
    "an input": f"(float[N,4,1] x, bool c) {{ t = {SQUEEZE}",
    "no element": f"(float[N,4,1] x) {{ c = Gather (yes1, at) t = {SQUEEZE}",
    "an open size": f"(float[N,4,M] x) {{ {SIZE} t = {SQUEEZE}",
    "an open rank": f"""(float[N,4,1] x, bool c) {{ z = {SQUEEZE} r = Shape (z)
        k = Size (r) d = Equal (k, pair)
        t = If (d) <then_branch = g3 () => (float[F,G] f) {{ f = Relu (z) }},
                    else_branch = g4 () => (float[H,I] h) {{ h = Neg (z) }}>""",
}


def network(text: str) -> onnx.ModelProto:
    """Return the model of `text`, whose bodies say no shape."""
    return without_shapes(
        build_used(f"g {text.replace(' {', ' => (float[K] y) {', 1)} y = Reshape (t, flat) }}", VALUES)
    )


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with outputs of bodies that say no shape."""
    for body in (body for node in list_nodes(model.graph) for body in bodies(node)):
        for output in body.output:
            output.type.tensor_type.ClearField("shape")
    return model


def count_ifs(model: onnx.ModelProto) -> int:
    """Return the number of If in a model, bodies included."""
    return sum(node.op_type == "If" for node in list_nodes(model.graph))


@pytest.mark.parametrize("name", DECIDED)
def test_the_branch_stands_in_its_place(name: str) -> None:
    """It has the values of ONNX's reference, a note says so, and the given model is as it was."""
    model = network(DECIDED[name])
    before = model.SerializeToString()
    loaded = onnxfq.load(model)
    assert not count_ifs(loaded.proto) and any("If that constants or fixed sizes" in n for n in loaded.notes)
    assert model.SerializeToString() == before
    (value,) = model.graph.input
    sizes = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
    given = {value.name: weights(*sizes)}
    wanted = ReferenceEvaluator(model).run(None, given)[0]
    np.testing.assert_array_equal(run_as_written(loaded.proto, given)[0], wanted)


@pytest.mark.parametrize("name", OPEN)
def test_others_stay(name: str) -> None:
    """An input, an open size or an open rank decides at each run: no size stands for all."""
    model = network(OPEN[name])
    assert count_ifs(onnxfq.load(model).proto) == count_ifs(model)


def test_sizes_that_are_given_decide() -> None:
    """A model that is opened for one size has the branch of that size."""
    for last, operator in ((1, "Squeeze"), (3, "Identity")):
        model = network(OPEN["an open size"])
        fix_sizes(model, {"x": (2, 4, last)})
        assert not count_ifs(model) and model.graph.node[-2].op_type == operator


ENDING = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,4,1] x, bool f) => (float[K] y)
    <float scale = {0.1}, uint8 p = {3}, int64[1] two = {2}, int64 at = {2}, int64 one = {1},
     int64[1] flat = {-1}>
    { q = QuantizeLinear (x, scale, p) x2 = DequantizeLinear (q, scale, p) SIZE
      z = SQUEEZE
      t = If (f) <then_branch = g3 () => (float[F,G] u) { u = Relu (z) },
                  else_branch = g4 () => (float[H,I] v) { v = Neg (z) }> y = Reshape (t, flat) }""".replace(
    "SIZE", SIZE
).replace("SQUEEZE", SQUEEZE.replace("(x", "(x2"))


def test_a_decided_branch_ends_no_process(tmp_path: Path) -> None:
    """ONNX Runtime ends the process that loads this file; ours reads it, and says so."""
    model, path = without_shapes(parser.parse_model(ENDING)), tmp_path / "given.onnx"
    assert ends_process(model, path)
    found = onnxfq.check(path, "onnxruntime").findings
    assert [one.rule for one in found if one.severity == "refused"] == ["moved-read"]
    given = {"x": weights(1, 4, 1), "f": np.asarray(True)}
    expected = ReferenceEvaluator(model).run(None, given)[0]
    np.testing.assert_array_equal(Session(model).run(given)[0], expected)
    np.testing.assert_array_equal(open_plain_session(model)(given)["y"], expected)


def test_sizes_are_not_fixed_for_a_session_of_users() -> None:
    """ONNX Runtime opens the file as it is: a branch that cannot run at these sizes refuses nothing."""
    text = """g (float[N,M] x, bool f) => (float[K] y) { a = MatMul (x, w) s = Shape (x) n = Gather (s, zero)
        t = If (f) <then_branch = g1 () => (float[A,B] u) { u = Relu (a) },
            else_branch = g2 () => (float[C,D,E] v) { c = Equal (n, one)
                b = If (c) <then_branch = g3 () => (float[F,G] p) { p = Identity (a) },
                    else_branch = g4 () => (float[H,I,J] q) { q = Unsqueeze (a, two) }>
                v = Unsqueeze (b, two) }> y = Reshape (t, flat) }"""
    model = without_shapes(build_used(text, VALUES | {"w": weights(8, 8)}))
    feeds = [{"x": weights(4, 8), "f": np.asarray(True)}] * 4
    made = onnxfq.quantize(model, feeds, recipe="onnxruntime-int8").qdq
    found = onnxfq.check(made, "onnxruntime", build=BuildOptions({"x": (4, 8)}))
    assert found.builder and found.passed
    with pytest.raises(DataError, match="which the model does not take"):
        onnxfq.check(made, "onnxruntime", build=BuildOptions({"other": (4, 8)}))


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
def test_changing_values_stay_carried(text: str) -> None:
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

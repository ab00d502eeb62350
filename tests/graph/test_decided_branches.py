"""An If that constants and fixed sizes decide becomes its branch; all others stay, and every value stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, build_used, ends_process, run_as_written, scalars, weights
from onnx import parser
from onnx.reference import ReferenceEvaluator

import onnxfq
from onnxfq.errors import DataError
from onnxfq.graph.model import bodies, list_nodes
from onnxfq.runtime.plain_session import open_plain_session
from onnxfq.runtime.session import Session
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

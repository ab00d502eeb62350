"""Products that ONNX Runtime multiplies in float despite their pairs: the plan says so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, feed_for, plain_quantize, weights

import onnxfq
from onnxfq.runtime.session import Session
from onnxfq.targets.target import BuildOptions, prepare_model

HALF = {"w": weights(16, 16).astype(np.float16), "k": weights(4, 4, 3, 3).astype(np.float16)}
FLOAT = {"w": weights(16, 16), "v": weights(16, 16, seed=1), "u": weights(16, 4), "r": weights(16)}
FLOAT |= {f"k{number}": weights(4, 4, 3, 3, seed=number) for number in range(4)}
TWO = "g (float[1,16] x, float[1,16] z) => (float[] y)"
SUM = "[sum] s = Add (a, b) t = Tanh (s) [last] y = MatMul (t, u)"
BRANCHES = """g (float[1,4,9,9] x, bool some) => (float[] y) {
    [first] c = Conv (x, k0) h = Relu (c) i = Conv (h, k1)
    j = If (some) <
        then_branch = one () => (float[] p) { [one] n = Conv (h, k2) p = Relu (n) },
        else_branch = other () => (float[] q) { [other] q = Conv (h, k3) } >
    y = Add (i, j) }"""
BETWEEN = BRANCHES.replace("i = Conv (h, k1)", "").replace("y = Add (i, j)", "[last] y = Conv (j, k3)")
SHARED = BRANCHES.replace("k3", "k2")
NETWORKS = {
    "half matmul": ("g (float16[2,6,16] x) => (float16[] y) { [first] y = MatMul (x, w) }", HALF, set()),
    "half conv": ("g (float16[1,4,9,9] x) => (float16[] y) { [first] y = Conv (x, k) }", HALF, set()),
    "two products": (
        f"{TWO} {{ [first] a = MatMul (x, w) [second] b = MatMul (z, v) {SUM} }}", FLOAT, set(),
    ),
    "two products the other way": (
        f"{TWO} {{ [second] b = MatMul (z, v) [first] a = MatMul (x, w) {SUM} }}", FLOAT, set(),
    ),
    "a sum with an input": (
        f"{TWO} {{ [first] a = MatMul (x, w) b = Relu (z) {SUM} }}", FLOAT, set(),
    ),
    "a bias": (
        f"{TWO} {{ [first] a = MatMul (x, w) s = Add (a, r) [last] y = MatMul (s, u) }}", FLOAT, set(),
    ),
    "stacked": (
        "g (float[2,6,16] x, float[2,6,16] z) => (float[] y) { [first] a = MatMul (x, w) y = Add (a, z) }",
        FLOAT, set(),
    ),
    "branches": (BRANCHES, FLOAT, {"one", "other"}),
    "branches with one weight": (SHARED, FLOAT, {"one", "other"}),
    "a branch with the weight of a layer": (BRANCHES.replace("k2", "k1"), FLOAT, {"one", "other"}),
    "branches between pairs": (BETWEEN, FLOAT, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_plan_names_what_runs_in_float(name: str) -> None:
    """The nodes that the plan names are those that ONNX Runtime itself runs in float."""
    text, constants, noted = NETWORKS[name]
    proto = onnx.shape_inference.infer_shapes(build(text, constants))
    feeds = []
    for seed in range(3):
        rng, feed = np.random.default_rng(seed), {}
        for value in proto.graph.input:
            tensor = value.type.tensor_type
            shape = [size.dim_value for size in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feed[value.name] = (rng.standard_normal(shape) + seed - 1).astype(dtype)
        feeds.append(feed)
    made = plain_quantize(proto, feeds, recipe="onnxruntime-int8")
    whys = {use.node: p.why for p in made.plan.placements if p.role == "weight" for use in p.uses}
    assert {node for node, why in whys.items() if f"ONNX Runtime runs {node!r} in float" in why} == noted
    result = onnxfq.check(made.qdq, "onnxruntime", build=BuildOptions())
    in_float = {node.node for node in result.engine if node.verdict == "float" and node.node in whys}
    assert in_float == noted


INNER = """g (float[1,4,9,9] x, bool some) => (float[1,4,9,9] y) { c = Conv (x, k0) h = Relu (c)
    j = If (some) <
        then_branch = one () => (float[] p) {
            p = If (some) <then_branch = three () => (float[] t) { t = Conv (h, k2) },
                           else_branch = four () => (float[] s) { s = Relu (h) }> },
        else_branch = two () => (float[] q) { q = Conv (h, k3) }>
    y = Conv (j, k1) }"""


SIGNED = BETWEEN.replace("[last] y = Conv (j, k3)", "[last] y = Conv (j, k1)")


@pytest.mark.parametrize("text", [INNER, SIGNED])
def test_second_pairs_change_no_bit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In branches every convolution runs in integers, with the bits of the pairs of readers alone.

    A pair in front of a Relu that stays does too, since the other branch returns negative numbers.
    """
    proto = onnx.shape_inference.infer_shapes(build(text.replace("float[1,4,9,9] y", "float[] y"), FLOAT))
    feeds = [feed_for(proto, at) | {"some": np.asarray(at % 2 == 0)} for at in range(4)]
    made = plain_quantize(proto, feeds, recipe="onnxruntime-int8").qdq
    (row,) = onnxfq.check(made, "onnxruntime", build=BuildOptions()).coverage
    assert (row.op_type, row.kept, row.promised) == ("Conv", 4, 4)
    monkeypatch.setattr("onnxfq.targets.onnxruntime.policy.pair_bodies", lambda one: one)
    plain = plain_quantize(proto, feeds, recipe="onnxruntime-int8").qdq
    sessions = [Session(one, 1, exact=True) for one in (made, plain)]
    for feed in feeds:
        np.testing.assert_array_equal(*(session.run(feed)[0] for session in sessions))
    (row,) = onnxfq.check(plain, "onnxruntime", build=BuildOptions()).coverage
    assert row.kept < row.promised


def test_half_pairs_of_another_recipe_are_explained() -> None:
    """Pairs in float16 run in float, and `check` says what to do."""
    text, constants, _ = NETWORKS["half matmul"]
    feed = {"x": weights(2, 6, 16).astype(np.float16)}
    made = plain_quantize(build(text, constants), feed, recipe="tensorrt-int8")
    (said,) = explained(made.qdq)
    assert "whose pairs are float32" in said


def explained(qdq: onnx.ModelProto) -> list[str]:
    """Return what `check` says of the nodes that ONNX Runtime runs in float."""
    findings = onnxfq.check(qdq, "onnxruntime", build=BuildOptions()).findings
    return [found.message for found in findings if found.rule == "engine"]


LINEAR = {
    "Gemm": "y = Gemm (x, w, r)",
    "Gemm without a bias": "y = Gemm (x, w)",
    "two of them": "a = Gemm (x, w, r) y = Gemm (a, u)",
    "MatMul and Add": "a = MatMul (x, w) y = Add (a, r)",
}


@pytest.mark.parametrize("opset", [13, 19, 21, 23])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_layers_run_in_integers_at_every_opset(name: str, opset: int) -> None:
    """From opset 21 on pairs may lack zero points, and ONNX Runtime then makes no QGemm."""
    proto = build(f"g (float[3,16] x) => (float[] y) {{ {LINEAR[name]} }}", FLOAT, opset=opset, ir=10)
    assert runs_in_integers(proto, {"x": weights(3, 16)})


def test_missing_zero_points_are_explained() -> None:
    """A check of another recipe's file says what keeps its Gemm in float."""
    proto = build(f"g (float[3,16] x) => (float[] y) {{ {LINEAR['Gemm']} }}", FLOAT, opset=21, ir=10)
    made = plain_quantize(proto, {"x": weights(3, 16)}, recipe="tensorrt-int8")
    (said,) = explained(made.qdq)
    assert "without zero points" in said


PRODUCTS = {
    "shared columns": ("bij,jk->bik", (2, 6, 16), (16, 8)),
    "turned": ("bij,kj->kbi", (2, 6, 16), (8, 16)),
    "constant on the left": ("kj,bji->bki", (8, 16), (2, 16, 6)),
    "constant to heads": ("btw,whd->bhtd", (2, 6, 16), (16, 3, 8)),
    "constant of heads": ("bthd,whd->tbw", (2, 6, 3, 8), (16, 3, 8)),
    "constant on the left of heads": ("whd,bhtd->btw", (16, 3, 8), (2, 3, 6, 8)),
    "constant behind an ellipsis": ("...k,kn->...n", (2, 6, 16), (16, 3)),
    "heads": ("bqhd,bkhd->bhqk", (2, 6, 3, 8), (2, 5, 3, 8)),
    "values": ("bhqk,bkhd->bqhd", (2, 3, 6, 5), (2, 5, 3, 8)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_einsum_that_is_a_product_is_a_matmul(name: str) -> None:
    """The prepared model has MatMul and the numbers of the Einsum, and runs in integers."""
    equation, left, right = PRODUCTS[name]
    constant = name not in ("heads", "values")
    first = name.startswith("constant on the left")
    feed = {"x": weights(*(right if first else left))} | ({} if constant else {"z": weights(*right, seed=1)})
    given = {name: f"float[{','.join(map(str, array.shape))}] {name}" for name, array in feed.items()}
    operands = ("w, x" if first else "x, w") if constant else "x, z"
    body = f'y = Einsum <equation = "{equation}"> ({operands})'
    text = f"g ({', '.join(given.values())}) => (float[] y) {{ {body} }}"
    proto = build(text, {"w": weights(*(left if first else right), seed=2)} if constant else {})
    prepared = prepare_model(onnxfq.load(proto), "onnxruntime").proto
    assert "MatMul" in {node.op_type for node in prepared.graph.node} <= {"MatMul", "Reshape", "Transpose"}
    want, got = (Session(one, 1, exact=True).run(feed)[0] for one in (proto, prepared))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)  # sums in another order
    assert runs_in_integers(proto, feed)


def runs_in_integers(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> bool:
    """Tell whether ONNX Runtime runs all that the written file promises."""
    result = plain_quantize(proto, feed, recipe="onnxruntime-int8")
    checked = onnxfq.check(result.qdq, "onnxruntime", build=BuildOptions())
    return bool(checked.coverage) and all(row.kept == row.promised for row in checked.coverage)


@pytest.mark.parametrize("equation", ["nd,nkde->nke", "nd,nd->n", "nkde,nd->nke"])
def test_other_einsums_stay_in_float(equation: str) -> None:
    """ONNX Runtime has no integer kernel of an Einsum, and the plan promises none."""
    shapes = {"n": 3, "d": 8, "k": 2, "e": 4}
    feed = {
        name: weights(*(shapes[c] for c in part), seed=len(name))
        for name, part in zip(("x", "zz"), equation.split("->")[0].split(","), strict=True)
    }
    given = ", ".join(f"float[{','.join(map(str, one.shape))}] {name}" for name, one in feed.items())
    proto = build(
        f'g ({given}) => (float[] y) {{ m = Einsum <equation = "{equation}"> (x, zz) y = Tanh (m) }}'
    )
    with pytest.raises(onnxfq.OnnxfqError, match="Einsum 'm': ONNX Runtime multiplies an Einsum in float"):
        onnxfq.make_plan(onnxfq.load(proto), onnxfq.load_recipe("onnxruntime-int8"))


FORMS = {
    "constant on the left": "y = MatMul (w, x)",
    "constant on the left of two": "a = MatMul (w, x) y = MatMul (w, a)",
    "alpha": "y = Gemm <alpha = 0.5> (x, w, b)",
    "alpha and beta": "y = Gemm <alpha = 2.0, beta = 0.25, transB = 1> (x, w, b)",
    "a Gemm and a Relu": "a = Gemm (x, w, b) r = Relu (a) y = Pow (r, two)",
    "a row behind a left constant": "a = MatMul (w, x) s = Add (a, b) y = Tanh (s)",
    "a row behind a product": "t = Tanh (x) a = MatMul (x, t) s = Add (a, b) y = Tanh (s)",
    "a square": "a = MatMul (x, w) r = Relu (a) y = Pow (r, two)",
    "a product": "a = MatMul (x, w) r = Relu (a) y = Mul (r, two)",
    "an exponential": "a = MatMul (x, w) r = Relu (a) y = Exp (r)",
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_run_in_integers(name: str) -> None:
    """Each of these ran in float as it was written."""
    proto = build(
        f"g (float[16,16] x) => (float[16,16] y) {{ {FORMS[name]} }}",
        {"w": weights(16, 16), "b": weights(16), "two": np.float32(2)},
    )
    assert runs_in_integers(proto, {"x": weights(16, 16, seed=3)})

"""float16 and bfloat16 models in, Q/DQ models of the same type out, and double refused tensor by tensor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, planned, stage, weights, whole_recipe
from half_models import HALVES, as_type, half_feed
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.data import Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import PlanError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model, list_nodes
from onnxfq.numerics.float_types import FLOATS
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

Made = tuple[Model, Plan, Encodings]


def calibrated(proto: onnx.ModelProto, recipe: Recipe) -> Made:
    """Return the model, its plan and its encodings by one feed."""
    model = load(proto)
    plan = make_plan(model, recipe)
    statistics = collect_statistics(model, plan, [half_feed(proto)], ObserveOptions(threads=1))
    return model, plan, calibrate(model, plan, statistics)


def assert_twins(made: Made, feed: Feed) -> None:
    """Q/DQ and fake-quant model give the same, to the bit."""
    got, want = (
        Session(insert(*made), 1, exact=True).run(feed) for insert in (insert_qdq, insert_fake_quantize)
    )
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8", "tensorrt-fp8"])
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_structure(name: str, kind: str, recipe: str) -> None:
    """Valid, everything covered that is covered in float32, scales of its type; Q/DQ = fake quant."""
    proto = as_type(BUILDERS[name](), kind)
    made = calibrated(proto, whole_recipe(recipe))
    assert made[1].coverage() == planned(BUILDERS[name](), recipe).coverage()
    qdq = insert_qdq(*made)
    onnx.checker.check_model(qdq, full_check=True)
    constants = {t.name: t.data_type for t in qdq.graph.initializer}
    scales = [constants[n.input[1]] for n in list_nodes(qdq.graph) if n.op_type.endswith("tizeLinear")]
    inner = TensorProto.FLOAT if recipe == "onnxruntime-int8" else HALVES[kind]  # it is float32 there
    assert scales and set(scales) == {inner}
    assert [v.type for v in qdq.graph.output] == [v.type for v in proto.graph.output]
    assert_twins(made, half_feed(proto))


@pytest.mark.parametrize("recipe", ["tensorrt-int4", "tensorrt-nvfp4", "tensorrt-mxfp8", "mxfp4"])
def test_other_formats(recipe: str) -> None:
    """Blocks and small scales in a float16 model: valid Q/DQ, whose result has the type of its reader."""
    text = "g (float16[N,256] x) => (float16[N,32] y) { [mm] y = MatMul (x, w) }"
    proto = build(text, {"w": weights(256, 32).astype(np.float16)})
    made, feed = calibrated(proto, whole_recipe(recipe)), half_feed(proto)
    simulated = Session(insert_fake_quantize(*made), 1, exact=True).run(feed)[0]
    assert simulated.dtype == np.float16
    if recipe == "mxfp4":
        return
    qdq = insert_qdq(*made)
    if recipe == "tensorrt-int4":
        onnx.checker.check_model(qdq, full_check=True)
        np.testing.assert_array_equal(Session(qdq, 1, exact=True).run(feed)[0], simulated)
    types = {v.name: v.type.tensor_type.elem_type for v in qdq.graph.value_info}
    (matmul,) = [n for n in qdq.graph.node if n.op_type == "MatMul"]
    assert all(name == "x" or types[name] == TensorProto.FLOAT16 for name in matmul.input)


def test_float16_raises_the_opset_no_further_than_needed() -> None:
    """QuantizeLinear takes float16 from opset 19 on."""
    proto = as_type(BUILDERS["gemm"](), "float16")
    assert with_qdq(*calibrated(proto, load_recipe("tensorrt-int8"))).opset == 19


@pytest.mark.parametrize("kind", HALVES)
def test_mixed_models(kind: str) -> None:
    """Each tensor keeps its own type: a float32 part has float32 scales, the half part its own."""
    text = f"""g (float[N,4] x) => (float[N,4] y) {{
        [first] h = MatMul (x, w)
        [narrow] n = Cast <to = {HALVES[kind]}> (h)
        [second] m = MatMul (n, v)
        [wide] y = Cast <to = 1> (m) }}"""
    half = weights(4, 4, seed=1).astype(FLOATS[kind].dtype)
    staged = stage(build(text, {"w": weights(4, 4), "v": half}, opset=21, ir=10))
    assert {p.tensor: p.float_type for p in staged.plan.placements} == {
        "x": "float32",
        "w": "float32",
        "n": kind,
        "v": kind,
    }
    made = (staged.model, staged.plan, staged.encodings)
    onnx.checker.check_model(insert_qdq(*made), full_check=True)
    assert_twins(made, staged.feed)


def test_double_stays_with_a_reason_tensor_by_tensor() -> None:
    """A float64 operator is named with its type, and the float32 one next to it is quantized."""
    text = """g (float[N,4] x, double[N,4] a) => (float[N,4] y, double[N,4] b) {
        [mm] y = MatMul (x, w) [other] b = MatMul (a, v) }"""
    plan = planned(build(text, {"w": weights(4, 4), "v": weights(4, 4).astype(np.float64)}))
    (node,) = [s for s in plan.skipped if s.kind == "node"]
    assert node.name == "other"
    assert node.why == "input 'v' is float64, and only float32, float16 and bfloat16 are quantized"
    assert [str(row) for row in plan.coverage()] == ["MatMul 1/2"]


@pytest.mark.parametrize("kind", HALVES)
def test_observed_statistics(kind: str) -> None:
    """Statistics of a 16-bit tensor equal NumPy's of the same numbers as float32."""
    text = f"g ({kind}[N,40] x) => ({kind}[N,3] y) {{ [mm] y = MatMul (x, w) }}"
    proto = build(text, {"w": weights(40, 3).astype(FLOATS[kind].dtype)}, opset=21, ir=10)
    model = load(proto)
    feed = half_feed(proto)
    plan = make_plan(model, load_recipe("tensorrt-int8"))
    got = collect_statistics(model, plan, [feed])["x"]
    want = TensorStatistics.from_array(feed["x"].astype(FLOATS[kind].dtype).astype(np.float32))
    assert (got.rmin, got.rmax, got.elements) == (want.rmin, want.rmax, want.elements)
    np.testing.assert_array_equal(got.bins, want.bins)
    np.testing.assert_array_equal(got.counts, want.counts)


@given(
    reach=st.floats(0, 3e38),
    kind=st.sampled_from(sorted(HALVES)),
    qtype=st.sampled_from(["int8", "int4", "int2", "uint8", "float8e4m3fn", "float4e2m1"]),
)
def test_scales_are_numbers_of_the_type(reach: float, kind: str, qtype: str) -> None:
    """NumPy's own rounding changes no scale; it is the next one up; nothing on the grid overflows."""
    chosen, symmetric = qtype_by_name(qtype), qtype != "uint8"
    reach = min(reach, FLOATS[kind].largest)
    scale, zero = choose_qparams(-reach, reach, chosen, symmetric, ParamRules(float_type=kind))
    exact, _ = choose_qparams(-reach, reach, chosen, symmetric)
    dtype = FLOATS[kind].dtype
    assert scale.astype(dtype).astype(np.float32) == scale > 0
    near_the_limit = reach > FLOATS[kind].largest * 0.6
    if not near_the_limit and exact > 2.0**-24:
        assert scale >= exact * (1 - 2.0**-23)  # `exact` is rounded to the nearest float32
        below = np.nextafter(scale.astype(dtype), dtype.type(0)).astype(np.float32)
        assert below < exact * (1 + 2.0**-23) or reach == 0
    for end in (chosen.qmin, chosen.qmax):
        if not symmetric or abs(end) <= min(chosen.qmax, -chosen.qmin):
            assert np.isfinite(((end - zero) * scale).astype(dtype).astype(np.float32))


def test_small_float16_scales() -> None:
    """Subnormal float16 scales are used; below the smallest, 2^-24, a scale is raised to it, never to 0."""
    rules = ParamRules(float_type="float16")
    int8 = qtype_by_name("int8")
    assert choose_qparams(-1e-9, 1e-9, int8, True, rules)[0] == 2.0**-24
    assert choose_qparams(-(2.0**-20) * 127, 0.0, int8, True, rules)[0] == 2.0**-20
    assert choose_qparams(0.0, 0.0, int8, True, rules)[0] == 1.0


def test_scales_that_the_type_lacks_are_refused() -> None:
    """Encodings made for float32 give Q and fake quant different numbers in float16: refused by name."""
    proto = as_type(BUILDERS["gemm"](), "float16")
    model, plan, encodings = calibrated(proto, load_recipe("tensorrt-int8"))
    wrong = tuple(
        e.model_copy(update={"scale": (0.1,)}) if e.tensor == "x" else e for e in encodings.encodings
    )
    with pytest.raises(PlanError, match="tensor 'x': a scale is not a float16 number"):
        insert_qdq(model, plan, encodings.model_copy(update={"encodings": wrong}))


def test_narrow_limits_in_float16() -> None:
    """Limits of one's own are clipped to float16 numbers that stand for them, or the type is refused."""
    proto = as_type(BUILDERS["gemm"](), "float16")
    for qtype, fits in (("int8[-100,100]", True), ("int14", False)):
        fields = {"qtype": qtype, "calibrator": "minmax"}
        recipe = load_recipe("tensorrt-int8").model_dump() | {"target": "simulation"}
        recipe |= {"activations": fields | {"symmetric": True}}
        made = calibrated(proto, Recipe.model_validate(recipe))
        if fits:
            assert_twins(made, half_feed(proto))
            continue
        with pytest.raises(PlanError, match="float16 has no number that stands for the limits of int14"):
            insert_qdq(*made)


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    """The emulation of a bfloat16 model gives NumPy's numbers: float32 products, ml_dtypes' rounding."""
    text = """g (bfloat16[N,4] x, bool c) => (bfloat16[N,4] y, bfloat16[N,4] h) {
        h = MatMul (x, w)
        y = If (c) <then_branch = yes () => (bfloat16[N,4] t) { t = Mul (h, w) },
                    else_branch = no () => (bfloat16[N,4] e) { e = Neg (x) }> }"""
    bf16 = ml_dtypes.bfloat16
    w, x = weights(4, 4).astype(bf16), weights(4, 4, seed=1)
    session = Session(build(text, {"w": w}, opset=17))
    rounded = x.astype(bf16).astype(np.float32)
    h = (rounded @ w.astype(np.float32)).astype(bf16)
    y, got = session.run({"x": x, "c": np.asarray(True)})
    np.testing.assert_array_equal(got, h.astype(np.float32))
    np.testing.assert_array_equal(y, (h * w).astype(np.float32))
    np.testing.assert_array_equal(session.run({"x": x, "c": np.asarray(False)})[0], -rounded)

"""The remainder in float16 or bfloat16: types, reasons, and what runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import (
    BUILDERS,
    build,
    build_used,
    feed_for,
    if_body,
    linear,
    scalars,
    weights,
    whole_recipe,
    with_constants,
)
from builders import plain_quantize as quantize
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.cli.main import main
from onnxfq.data import Data
from onnxfq.documents.cast_plan import FloatOptions, FloatPlan
from onnxfq.errors import ModelError
from onnxfq.graph.normalize.shapes import add_shapes, with_shapes
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.placement.half_range import masks, unfit
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.html import render_report
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.write import write_model
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.tools.check import check

FP16, BF16 = FloatOptions("fp16"), FloatOptions("bf16")
HALF = HALF_TYPES["fp16"]


def halved(
    proto: onnx.ModelProto, feeds: Data, *path: Path, floats: FloatOptions = FP16, **how: Any
) -> QuantizeResult:
    """Quantize with the remainder as in `floats`; remedies say nothing of it."""
    return quantize(proto, feeds, *path, options=QuantizeOptions(floats=floats), **how)


def cast(
    proto: onnx.ModelProto, options: FloatOptions = FP16, recipe: str = "tensorrt-int8"
) -> QuantizeResult:
    """The same on three random feeds."""
    feeds = [feed_for(proto, seed) for seed in range(3)]
    return halved(proto, feeds, floats=options, recipe=whole_recipe(recipe))


def types(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of every tensor, inferred by ONNX."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    add_shapes(copy)
    graph = copy.graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def reasons(result: QuantizeResult) -> dict[str, str]:
    """Return why each kept node and tensor stays in float32."""
    assert result.floats is not None
    return {one.name: one.why for one in (*result.floats.nodes, *result.floats.tensors)}


def loud() -> onnx.ModelProto:
    """Three layers; the middle one gives about 90,000, and what reads it divides that again."""
    large = np.full((8, 8), 3000, np.float32)
    return build(
        """g (float[N,8] x) => (float[N,8] y) {
            [low] a = MatMul (x, w)
            [relu] r = Relu (a)
            [loud] b = MatMul (r, large)
            [calm] c = Div (b, by)
            [last] y = MatMul (c, v) }""",
        {"w": np.abs(weights(8, 8)), "large": large, "by": np.float32([3e4]), "v": weights(8, 8, seed=1)},
    )


def loud_feed() -> dict[str, np.ndarray]:
    """A feed that takes `loud` to 90,000."""
    proto = loud()
    x = np.full((4, 8), 0.5, np.float32)
    w = numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == "w"))
    return {"x": x * np.float32(90_000 / (3000 * (x @ w).sum(1).max()))}


@pytest.mark.parametrize("model", [name for name in BUILDERS if name != "if_body"])
def test_written_models_are_valid(model):
    """ONNX's checker finds every operator in a type that it has; inputs and outputs are as before.

    ONNX Runtime gives what the fake-quant model gives, except for the rounding of float16. 30 dB: a value
    between two steps of the int8 grid may go to the other one, which counts a whole step.
    """
    proto = BUILDERS[model]()
    for name in ("bf16", "fp16"):
        result = cast(proto, FloatOptions(name))
        onnx.checker.check_model(result.qdq, full_check=True)
        for field in ("input", "output"):
            before, after = (
                [(v.name, v.type.tensor_type.elem_type) for v in getattr(one.graph, field)]
                for one in (proto, result.qdq)
            )
            assert before == after
        assert {p.key: p.value for p in result.qdq.metadata_props}["onnxfq.float"] == name
    fake, qdq = result.evaluation.candidates
    assert qdq.candidate == "Q/DQ" and qdq.outputs[0].sqnr_db > min(30, fake.outputs[0].sqnr_db - 1)
    Session(result.qdq, 1)  # at the level that Q/DQ models are run at


@pytest.mark.sample
def test_the_remainder_is_float16():
    """Relu, Add and BatchNormalization of a residual block run in float16, with constants of that type."""
    result = cast(BUILDERS["two_branch"]())
    found = types(result.qdq)
    for name in ("h", "r1", "n", "s", "r2", "gain", "mean", "b2", "h/dq", "w1/dq", "h/scale", "w1/scale"):
        assert found[name] == TensorProto.FLOAT16, name
    assert not any(t.data_type == TensorProto.FLOAT for t in result.qdq.graph.initializer)


def test_scales_are_those_of_the_encodings():
    """Scales are rounded when they are chosen: the cast changes none, and weights are encoded with them."""
    result = cast(BUILDERS["conv_relu"]())
    stored = {t.name: numpy_helper.to_array(t) for t in result.qdq.graph.initializer}
    for name in ("x", "w"):
        exact = result.encodings[name].scale
        halves = [v for key, v in stored.items() if key.startswith(f"{name}/scale")]
        assert any(v.dtype == np.float16 for v in halves)
        for values in halves:
            np.testing.assert_array_equal(values.astype(np.float32), exact)


def test_float_io():
    """With io the inputs and outputs are float16 too, and the figures are those without."""
    result = cast(linear(16, 6), FloatOptions("fp16", io=True))
    kinds = {v.type.tensor_type.elem_type for v in (*result.qdq.graph.input, *result.qdq.graph.output)}
    assert kinds == {TensorProto.FLOAT16}
    onnx.checker.check_model(result.qdq, full_check=True)
    (y,) = Session(result.qdq, 1).run({"x": feed_for(linear(16, 6))["x"].astype(np.float16)})
    assert y.dtype == np.float16
    assert result.evaluation.candidates[1].outputs == cast(linear(16, 6)).evaluation.candidates[1].outputs


def test_a_kernel_that_lacks_float16_only_when_it_runs(tmp_path: Path) -> None:
    """ScatterND of ONNX Runtime loads with float16 and adds in float32 alone; the model is written."""
    proto = build(
        "g (float[4,8] x, int64[6,1] i, float[6,8] u) => (float[4,8] y) {"
        ' s = ScatterND <reduction = "add"> (x, i, u) y = MatMul (s, w) }',
        {"w": weights(8, 8)},
    )
    rng = np.random.default_rng(0)
    feed = {"x": rng.normal(size=(4, 8)), "i": rng.integers(0, 4, (6, 1)), "u": rng.normal(size=(6, 8))}
    feed = {name: array.astype(np.int64 if name == "i" else np.float32) for name, array in feed.items()}
    result = halved(proto, [feed] * 3, tmp_path / "q.onnx", recipe=whole_recipe("tensorrt-int8"))
    written = onnx.load(tmp_path / "q.onnx")
    assert types(written)["s"] == TensorProto.FLOAT16 and written == result.qdq


def test_a_layer_beyond_the_range_stays(tmp_path: Path):
    """Outputs of 90,000 are infinite in float16: the layer and its reader stay, and all reports name it."""
    result = halved(loud(), [loud_feed()] * 8, tmp_path / "m.onnx")
    found = reasons(result)
    assert "90" in found["b"] and "beyond 65504" in found["b"]
    assert found["loud"] == f"gives 'b': {found['b']}" and found["calm"].startswith("reads 'b'")
    assert "relu" not in found
    for text in (quantize_summary(result), render_report(result)):
        assert "beyond 65504" in text
    (y,) = Session(tmp_path / "m.onnx", 1).run(loud_feed())
    assert np.isfinite(y).all()
    kept = types(result.qdq)
    assert (kept["b"], kept["r"]) == (TensorProto.FLOAT, TensorProto.FLOAT16)


def test_sums_and_their_chain_stay():
    """ReduceMean, the 1e-12 next to it and the root stay in float32; what is multiplied by it does not."""
    proto = build(
        """g (float[N,16] x) => (float[N,8] y) {
            [relu] r = Relu (x)
            [square] s = Pow (r, two)
            [mean] m = ReduceMean <axes = [-1], keepdims = 1> (s)
            [eps] e = Add (m, small)
            [root] q = Sqrt (e)
            [norm] n = Div (r, q)
            [mm] y = MatMul (n, w) }""",
        {"two": np.float32(2), "small": np.float32(1e-12), "w": weights(16, 8)},
    )
    result = cast(proto)
    found = reasons(result)
    assert {name for name in found if name in ("relu", "square", "mean", "eps", "root", "norm", "mm")} == {
        "mean",
        "eps",
        "root",
    }
    assert found["mean"] == "it sums over many elements"
    assert "smallest normal number" in found["eps"]
    assert types(result.qdq)["n"] == TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[op] y = Log (e)", True),
        ("[op] y = Reciprocal (e)", True),
        ("[op] y = Div (h, e)", True),
        ("[op] y = Div (e, h)", False),
        ("[op] y = Pow (e, half)", True),
        ("[op] y = Pow (e, two)", False),
        ("[op] y = Sqrt (e)", False),
    ],
)
def test_small_values_made_large(text: str, kept: bool) -> None:
    """A value of 1e-10, which would be 0 in float16, is read in float32 by the node that makes it large."""
    proto = build(
        f"g (float[N,16] x) => (float[N,8] y) {{ [mm] m = MatMul (x, w) i = Sigmoid (m) h = Add (i, one)"
        f"[relu] r = Relu (m) [eps] e = Add (r, tiny) {text} }}",
        {**scalars(np.float32, tiny=1e-10, half=-0.5, two=2, one=1), "w": weights(16, 8)},
    )
    feeds = [feed_for(proto, seed) for seed in range(8)]
    result = halved(proto, feeds)
    found = reasons(result)
    # A node that is not kept for its own sake may lie between others that are.
    assert found.get("op", "").startswith(("reads", "gives")) == kept, found
    assert "Log" not in text or "values down to 1e-10, which have few digits" in found["op"]
    feed = {"x": np.full((1, 16), -1, np.float32)}
    want = Session(quantize(proto, feeds).qdq, 1, exact=True).run(feed)[0]
    got = Session(result.qdq, 1, exact=True).run(feed)[0]
    assert np.isfinite(got).all() or not np.isfinite(want.astype(np.float16)).all()


@pytest.mark.parametrize("lowest", [-1e9, -3.4028235e38, -np.inf])
def test_masks_stay_finite(lowest):
    """Numbers that stand for minus infinity become the lowest of float16: a masked row is not NaN."""
    proto = build(
        """g (float[2,4] x, bool[2,4] seen) => (float[2,4] y) {
            [mm] s = MatMul (x, w)
            [mask] m = Where (seen, zero, low)
            [add] a = Add (s, m)
            [soft] y = Softmax <axis = -1> (a) }""",
        {"w": weights(4, 4), "zero": np.float32(0), "low": np.float32(lowest)},
    )
    feeds = [
        feed_for(proto, seed) | {"seen": np.asarray([[1, 1, 0, 1], [1, 0, 0, 1]], bool)} for seed in range(8)
    ]
    result = halved(proto, feeds)
    assert "add" not in reasons(result)
    feed = feeds[0] | {"seen": np.zeros((2, 4), bool)}
    (y,) = Session(result.qdq, 1).run(feed)
    assert np.isnan(y).any() == (lowest == -np.inf and np.isnan(Session(proto, 1).run(feed)[0]).any())


@pytest.mark.parametrize(
    "text",
    [
        "a = MatMul (x, w) s = SequenceConstruct (a, x) h = SequenceAt (s, i) y = MatMul (h, w)",
        "a = MatMul (x, w) o = Optional (a) h = OptionalGetElement (o) y = MatMul (h, w)",
    ],
    ids=["sequence", "optional"],
)
def test_what_is_no_tensor_keeps_its_type(text: str, tmp_path: Path) -> None:
    """Makers and readers of a sequence or an optional stay in float32; the file loads as it is."""
    proto = build(
        f"g (float[N,4] x) => (float[N,4] y) {{ {text} }}", {"w": weights(4, 4), "i": np.int64(0)}, opset=18
    )
    found = halved(proto, [feed_for(proto)], tmp_path / "q.onnx")
    assert found.floats is not None
    kept = {s.op_type for s in found.floats.nodes if s.why.startswith("it takes or gives a sequence or an")}
    assert kept == {n.op_type for n in proto.graph.node} - {"MatMul"}
    assert any(
        n.op_type == "MatMul" and n.name not in {s.name for s in found.floats.nodes}
        for n in found.qdq.graph.node
    )
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"), full_check=True)
    onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])


def test_bodies_keep_their_types():
    """A tensor that a body reads from outside is float32 there, and float16 outside."""
    proto = if_body()
    result = cast(proto)
    onnx.checker.check_model(result.qdq, full_check=True)
    assert "body" in reasons(result)["choose"]
    for cond in (True, False):
        feed = feed_for(proto) | {"cond": np.asarray(cond)}
        expected, got = (Session(p, 1).run(feed)[0] for p in (proto, result.qdq))
        # A coarse bound: one int8 product in front.
        np.testing.assert_allclose(got, expected, atol=0.1 * np.abs(expected).max())


def test_bfloat16_is_not_run():
    """ONNX Runtime has no bfloat16 Q/DQ: the fake-quant model is measured, and a note says so."""
    result = cast(linear(16, 6), BF16)
    assert result.evaluation.notes == ("Q/DQ model not run: ONNX Runtime has no kernels for bfloat16",)
    assert explain_unsupported(result.qdq)


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """`quantize --float fp16 --artifacts` writes the model and its plan of floats."""
    onnx.save(linear(16, 6), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=feed_for(linear(16, 6), count=40)["x"])
    line = f"quantize {tmp_path}/m.onnx --data {tmp_path}/d.npz -o {tmp_path}/o.onnx --float fp16"
    assert main(f"{line} --artifacts {tmp_path}/kept".split()) == 0
    assert "float part fp16" in capfd.readouterr().out
    assert FloatPlan.model_validate_json((tmp_path / "kept/m.floats.json").read_text()).name == "fp16"
    assert any(t.data_type == TensorProto.FLOAT16 for t in onnx.load(tmp_path / "o.onnx").graph.initializer)


# Ranges


@given(st.lists(st.floats(1e-3, 3e4), min_size=1), st.booleans())
def test_what_is_well_inside_fits(values, negative):
    """No tensor of magnitudes between 0.001 and 30,000 is kept back."""
    x = np.asarray(values, np.float32) * (-1 if negative else 1)
    assert unfit(TensorStatistics.from_array(x), HALF) == ""


@given(st.lists(st.floats(-100, 100, width=32), min_size=1), st.floats(66000, 2.0**100, width=32))
def test_one_value_beyond_is_enough(values, far):
    """A single positive value beyond 65504 keeps a tensor in float32, with its range in the reason."""
    found = TensorStatistics.from_array(np.asarray([*values, far], np.float32))
    assert f"to {found.rmax:.6g}, beyond 65504" in unfit(found, HALF)


def test_small_values():
    """A tensor mostly below the steps of float16 is kept; a Softmax of 512 with many small values is not."""
    rng = np.random.default_rng(0)
    tiny = TensorStatistics.from_array((rng.normal(size=1000) * 1e-7).astype(np.float32))
    assert "smallest normal number" in unfit(tiny, HALF)
    logits = rng.normal(size=(64, 512)) * 4
    soft = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    assert (soft < HALF.smallest).mean() > 0.5
    assert unfit(TensorStatistics.from_array(soft), HALF) == ""


def test_masks_are_told_from_large_values():
    """-1e9 next to scores is a mask; values that go there step by step, or on both sides, are values."""
    scores = np.linspace(-20, 20, 100).astype(np.float32)
    mask = TensorStatistics.from_array(np.append(scores, np.float32(-1e9)))
    assert unfit(mask, HALF) == "" and masks(mask, HALF)
    steps = TensorStatistics.from_array(np.append(scores, np.float32([-1e6, -1e9])))
    both = TensorStatistics.from_array(np.append(scores, np.float32([1e9, -1e9])))
    for found in (steps, both):
        assert "beyond 65504" in unfit(found, HALF) and not masks(found, HALF)


# TensorRT


@pytest.mark.grid
@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("model", ["two_branch", "downsample", "attention", "tied_embedding", "gemm"])
def test_tensorrt_keeps_the_promises(model, name):
    """Every node that is quantized runs in int8 with the remainder in a half type."""
    result = check(cast(BUILDERS[model](), FloatOptions(name)).qdq, build=BuildOptions())
    assert result.passed and result.engine
    # TensorRT for RTX adds two results of convolutions in float.
    assert all(row.kept == row.promised for row in result.coverage if row.op_type != "Add (residual)")


@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
@pytest.mark.parametrize(
    "recipe", ["tensorrt-fp8", "tensorrt-int4", "tensorrt-int8-weights", "tensorrt-mxfp8", "tensorrt-nvfp4"]
)
def test_every_recipe_in_float16(recipe):
    """Scales of every format are written in the type that TensorRT wants with float16."""
    proto = build(
        """g (float[16,256] x) => (float[16,256] y) {
            [one] a = MatMul (x, w) [relu] r = Relu (a) [two] y = MatMul (r, v) }""",
        {"w": weights(256, 256), "v": weights(256, 256, seed=1)},
    )
    result = check(cast(proto, recipe=recipe).qdq, build=BuildOptions())
    assert result.passed, result.table()
    assert all(row.kept == row.promised == 2 for row in result.coverage), result.table()


def test_the_loud_layer_builds():
    """A layer that stays in float32 is still multiplied in int8."""
    if not builder_installed():
        pytest.skip("TensorRT for RTX is not installed")
    result = check(halved(loud(), [loud_feed()] * 8).qdq, build=BuildOptions())
    assert result.passed and all(row.kept == row.promised == 3 for row in result.coverage)


def several_outputs(op: str) -> onnx.ModelProto:
    """A node of `op` with several outputs, which are the outputs of the model."""
    texts = {
        "Split": """g (float[N,4] x) => (float[N,2] boxes, float[N,2] scores) {
            a = MatMul (x, w) boxes, scores = Split <axis = 1> (a) }""",
        "BatchNormalization": """g (float[N,4] x) => (float[N,4] y, float[4] m, float[4] v) {
            a = MatMul (x, w) y, m, v = BatchNormalization <training_mode = 1> (a, one, one, one, one) }""",
        "Scan": """g (float[4,4] x) => (float[4] last, float[4,4] all) { a = MatMul (x, w)
            last, all = Scan <num_scan_inputs = 1,
            body = step (float[4] s, float[4] r) =>
            (float[4] t, float[4] u) { t = Add (s, r) u = Mul (s, r) }> (one, a) }""",
        "Loop": """g (float[N,4] x) => (float[N,4] last, float[2,N,4] all) { a = MatMul (x, w)
            last, all = Loop <
            body = step (int64 i, bool c, float[N,4] s) =>
            (bool d, float[N,4] t, float[N,4] u)
            { d = Identity (c) t = Add (s, s) u = Identity (s) }> (two, , a) }""",
    }
    return build(texts[op], {"w": weights(4, 4), "one": np.ones(4, np.float32), "two": np.int64(2)})


@pytest.mark.grid
@pytest.mark.parametrize("io", [False, True])
@pytest.mark.parametrize("op", ["Split", "BatchNormalization", "Scan", "Loop"])
def test_nodes_of_several_outputs(op: str, io: bool, tmp_path: Path) -> None:
    """Each output has its type, cast or not, in a file that ONNX Runtime loads."""
    proto = several_outputs(op)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    halved(proto, [{"x": x}], tmp_path / "q.onnx", floats=FloatOptions("fp16", io))
    found = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    wanted = Session(proto, exact=True).run({"x": x})
    given = found.run(None, {"x": x.astype(np.float16) if "16" in found.get_inputs()[0].type else x})
    for one, other in zip(wanted, given, strict=True):
        assert np.abs(one - other).max() < 0.25 * np.abs(one).max()  # steps of int8, multiplied


CONTRIB = {
    "Gelu": "a = MatMul (x, w) b = com.microsoft.Gelu (a) y = MatMul (b, v)",
    "QuickGelu": "a = MatMul (x, w) b = com.microsoft.QuickGelu (a) c = Mul (a, b) y = MatMul (c, v)",
    "FusedMatMul": "a = com.microsoft.FusedMatMul (x, w) b = Add (a, bias) y = MatMul (b, v)",
    "SkipLayerNormalization": """a = MatMul (x, w) b = com.microsoft.SkipLayerNormalization (a, x, bias)
        y = MatMul (b, v)""",
}


@pytest.mark.grid
@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("op", CONTRIB)
def test_operators_that_onnx_does_not_know(op: str, name: str, tmp_path: Path) -> None:
    """ONNX Runtime loads the written file, whose operands have one type, or lacks bfloat16 kernels only."""
    proto = build(
        f"g (float[N,4] x) => (float[N,4] y) {{ {CONTRIB[op]} }}",
        {"w": weights(4, 4), "v": weights(4, 4, seed=1), "bias": weights(4)},
        **{"com.microsoft": 1},
    )
    feed = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    result = halved(proto, [feed], tmp_path / "q.onnx", floats=FloatOptions(name))
    assert any("com.microsoft" in why for why in reasons(result).values())
    if name == "fp16":
        onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"]).run(None, feed)
    else:
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
            onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])


def test_unknown_types_stay_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If nothing knows the type of a tensor, its maker and its readers stay in float32 and say so."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y) {
            a = MatMul (x, w) b = com.microsoft.Gelu (a) c = Relu (b) y = MatMul (c, v) }""",
        {"w": weights(4, 4), "v": weights(4, 4, seed=1)},
        **{"com.microsoft": 1},
    )
    monkeypatch.setattr("onnxfq.stages.cast.with_all_types", with_shapes)
    feed = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    result = halved(proto, [feed], tmp_path / "q.onnx")
    assert "the type of 'b' is unknown" in reasons(result).values()
    onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"]).run(None, feed)


def test_files_of_two_types_at_one_operator_are_refused(tmp_path: Path) -> None:
    """The file is tried in the types it is written in: what ONNX Runtime refuses is an error, not a file."""
    proto = linear(4, 4)
    mixed = with_constants(proto, lambda name, array: array.astype(np.float16))
    with pytest.raises(ModelError, match="cannot load the model"):
        write_model(mixed, tmp_path / "q.onnx", [feed_for(proto)])
    assert not list(tmp_path.iterdir())


RECURRENT = {"GRU": 3, "LSTM": 4, "RNN": 1}


def recurrent(op: str, before: str, steps: int | str = 25, direct: bool = False) -> onnx.ModelProto:
    """A linear layer unless `direct`, `before`, a recurrent operator over `steps`, and a linear layer."""
    gates = RECURRENT[op]
    first = "u = Identity (x)" if direct else "m = MatMul (x, wi) u = Relu (m)"
    return build(
        f"""g (float[{steps},2,64] x) => (float[{steps},2,16] y) {{
            {first} {before} [loop] l = {op} <hidden_size = 32> (v, w, r)
            s = Squeeze (l, ax) [out] y = MatMul (s, wo) }}""",
        {
            "wi": weights(64, 64),
            "w": weights(1, gates * 32, 64),
            "r": weights(1, gates * 32, 32),
            "wo": weights(32, 16),
            "ax": np.asarray([1], np.int64),
        },
    )


@pytest.mark.grid
@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
@pytest.mark.parametrize("op", RECURRENT)
@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize(("io", "direct"), [(False, False), (False, True), (True, False), (True, True)])
def test_no_cast_in_front_of_a_loop(op, name, io, direct):
    """TensorRT builds no Cast in front of a recurrent operator: what computes its input stays in float32."""
    turned = "t = Transpose <perm = [1,0,2]> (u) v = Transpose <perm = [1,0,2]> (t)"
    proto = recurrent(op, turned, direct=direct)
    made = cast(proto, FloatOptions(name, io=io))
    result = check(made.qdq, build=BuildOptions())
    assert result.passed and all(row.kept == row.promised for row in result.coverage), result.table()
    assert ("x" in reasons(made)) == (io and direct)
    whys = [why for why in reasons(made).values() if "no Cast in front of a loop" in why]
    assert len(whys) >= (2 if not direct or io else 1)


@pytest.mark.parametrize("steps", [1, "T"])
def test_loops_that_take_a_cast(steps):
    """With one step or an open number TensorRT takes the Cast: what computes the input is cast as before."""
    assert not any("a loop" in why for why in reasons(cast(recurrent("GRU", "v = Neg (u)", steps))).values())


ENDS = {
    "input": "(float[N,8] y, float[N,8] x) { y = MatMul (x, w) }",
    "identity": "(float[N,8] y, float[N,8] z) { y = MatMul (x, w) z = Identity (x) }",
    "both": """(float[N,8] z, float[N,8] y, float[N,8] x) {
        y = MatMul (x, w) t = Identity (x) z = Identity (t) }""",
    "constant": """(float[N,8] y, float[8,8] v) {
        h = MatMul (x, w) m = ReduceMean <axes = [0]> (v) y = Add (h, m) }""",
    "weight": "(float[N,8] y, float[8,8] w) { y = MatMul (x, w) }",
    "twice": "(float[N,8] y, float[N,8] y) { y = MatMul (x, w) }",
    "body": """(float[N,8] y, float[N,8] h, float[N,8] x) {
        h = MatMul (x, w) zero = ReduceSum (h) c = Cast <to = 9> (zero)
        y = If (c) <then_branch = a () => (float[N,8] t) { r = Relu (x) t = Add (r, h) },
                    else_branch = b () => (float[N,8] e) { e = Relu (h) }> }""",
}


@pytest.mark.grid
@pytest.mark.parametrize("form", ENDS)
@pytest.mark.parametrize(
    "options", [FloatOptions("fp16", io=True), FP16, FloatOptions("bf16", io=True), BF16]
)
def test_tensors_that_are_outputs_too(form: str, options: FloatOptions, tmp_path: Path) -> None:
    """An input, a constant and a weight that are outputs, one listed twice, and tensors that bodies read."""
    proto = build(
        f"g (float[N,8] x) => {ENDS[form]}", {name: weights(8, 8, seed=i) for i, name in enumerate("wv")}
    )
    feeds = [feed_for(proto, seed) for seed in range(3)]
    result = halved(proto, feeds, tmp_path / "q.onnx", floats=options, recipe="tensorrt-int8")
    written = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(written, full_check=True)
    kept = {name for name, why in reasons(result).items() if "bodies read it" in why}
    half = HALF_TYPES[options.name].onnx_type if options.io else TensorProto.FLOAT
    for value in (*written.graph.input, *written.graph.output):
        assert value.type.tensor_type.elem_type == (TensorProto.FLOAT if value.name in kept else half)
    assert bool(kept) == (options.io and form == "body")
    wanted = Session(proto, 1).run(feeds[0])
    asked = {value.name: value.type.tensor_type.elem_type for value in written.graph.input}
    dtype = np.float16 if asked["x"] == TensorProto.FLOAT16 else np.float32
    got = Session(written, 1).run({"x": feeds[0]["x"].astype(dtype)})
    for one, other in zip(wanted, got, strict=True):  # 8 bits
        assert np.abs(one - other).max() < 0.05 * np.abs(one).max()


PRODUCTS = {
    "MatMul": "r = Relu (x) y = MatMul (r, small)",
    "Gemm": "r = Relu (x) y = Gemm (r, small, b)",
    "Einsum": 'r = Relu (x) y = Einsum <equation = "ab,bc->ac"> (r, small)',
    "shared": "r = Relu (x) s = MatMul (r, small) t = MatMul (r, w) y = Add (s, t)",
    "computed": "k = MatMul (x, w) q = Mul (k, tiny) t = Transpose (k) s = MatMul (q, t) y = MatMul (s, x)",
}


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_scales_of_a_product_have_one_type(name: str, recipe: str, tmp_path: Path) -> None:
    """One scale beyond float16 keeps all pairs of its product in float32; TensorRT's builder wants that."""
    small = weights(64, 64)
    small[:, 3] *= 1e-3
    constants = {"small": small, "w": weights(64, 64), "b": weights(64), "tiny": np.float32(1e-4)}
    proto = build_used(f"g (float[64,64] x) => (float[64,64] y) {{ {PRODUCTS[name]} }}", constants)
    feeds = [{"x": weights(64, 64, seed=i)} for i in range(3)]
    halved(proto, feeds, tmp_path / "q.onnx", recipe=whole_recipe(recipe))
    written = onnx.load(tmp_path / "q.onnx")
    kinds = {tensor.name: tensor.data_type for tensor in written.graph.initializer}
    makers = {out: node for node in written.graph.node for out in node.output}

    def scale_type(tensor: str) -> int:
        node = makers[tensor]
        return kinds[node.input[1]] if node.op_type == "DequantizeLinear" else scale_type(node.input[0])

    mixed = []
    for node in written.graph.node:
        if node.op_type in ("MatMul", "Gemm", "Einsum"):
            mixed.append({scale_type(one) for one in node.input[:2]})
    assert all(len(one) == 1 for one in mixed)
    assert {TensorProto.FLOAT} in mixed
    if recipe.startswith("tensorrt") and builder_installed():
        found = check(tmp_path / "q.onnx", build=BuildOptions())
        assert not [one for one in found.findings if one.severity in ("refused", "float")]

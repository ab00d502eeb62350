"""MX, NVFP4, dynamic activations and fractional zero points: from the recipe to the written model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from agreement import twins, with_outputs
from builders import (
    BUILDERS,
    build,
    constants,
    conv_relu,
    conv_transpose,
    feed_for,
    gemm,
    graph_text,
    linear,
    one_format,
    planned,
    qdq_of,
    same_tensor_twice,
    stage,
    transposed_weight,
    weights,
    whole_recipe,
)
from builders import plain_quantize as quantize
from engines import unmeasured
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import dequantize, dynamic_fake_quantize, fake_quantize

import onnxfq
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.plan_text import plan_summary
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError, PlanError, RecipeError
from onnxfq.graph.model import default_opset
from onnxfq.graph.names import Use
from onnxfq.numerics.block_scales import HEADROOM
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, with_fake_quantize
from onnxfq.report.html import render_report
from onnxfq.report.tensor_rows import quantized_tensors
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.derived_scales import encode_constant
from onnxfq.stages.insert import with_target_qdq
from onnxfq.stages.options import RunOptions
from onnxfq.stages.score import score_models
from onnxfq.targets.recipes import RECIPES, load_recipe
from onnxfq.targets.target import BuildOptions

# qtype, scale_type, block_size
FORMATS = {
    "mxfp8-e4m3": ("float8e4m3fn", "e8m0", 32),
    "mxfp8-e5m2": ("float8e5m2", "e8m0", 32),
    "mxfp6-e2m3": ("float6e2m3", "e8m0", 32),
    "mxfp6-e3m2": ("float6e3m2", "e8m0", 32),
    "mxfp4": ("float4e2m1", "e8m0", 32),
    "mxint8": ("int8", "e8m0", 32),
    "nvfp4": ("float4e2m1", "e4m3", 16),
}
SIMULATED = ("mxfp8", "mxfp6", "mxfp4", "mxint8", "nvfp4")


def blocks_recipe(name: str, target: str = "simulation", **changes: object) -> Recipe:
    """Return a recipe of one of FORMATS; changes: `activations` and `weights`, None for weight-only."""
    qtype, scale_type, _ = FORMATS[name]
    scheme = {"qtype": qtype, "scale_type": scale_type, "granularity": "blocked"}
    fields = {"activations": scheme | {"dynamic": True}, "weights": scheme}
    return Recipe.model_validate({"name": "blocks", "target": target, **fields, **changes})


def dynamic_recipe(target: str = "simulation", **scheme: object) -> Recipe:
    """Return a recipe of dynamic activations with int8 weights."""
    activations = {"qtype": "int8", "dynamic": True} | scheme
    return Recipe.model_validate(
        {"name": "dynamic", "target": target, "activations": activations, "weights": {"qtype": "int8"}}
    )


def simulated(staged, switchable: bool = False) -> onnx.ModelProto:
    """Return the fake-quant model."""
    return with_fake_quantize(
        staged.model, staged.plan, staged.encodings, "one" if switchable else "none"
    ).proto


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare float32 to the bit, signed zeros included."""
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def projected_attention() -> onnx.ModelProto:
    """Attention whose values have a separate projection, as is usual: each tensor is summed one way."""
    return build(
        """g (float[N,3,4] x) => (float[N,3,4] m) {
            [q] q = MatMul (x, wq)
            [k] k = MatMul (x, wk)
            [v] v = MatMul (x, wv)
            [kt] kt = Transpose <perm = [0,2,1]> (k)
            [scores] s = MatMul (q, kt)
            [soft] p = Softmax <axis = -1> (s)
            [mix] m = MatMul (p, v) }""",
        {f"w{n}": weights(4, 4, seed=i) for i, n in enumerate("qkv")},
    )


# Weights


@pytest.mark.parametrize("name", FORMATS)
@given(
    rows=st.integers(1, 5),
    k=st.integers(1, 70),
    axis=st.integers(0, 1),
    seed=st.integers(0, 99),
    decades=st.floats(0, 8),
)
def test_weights_are_rounded_as_the_operator_rounds(name, rows, k, axis, seed, decades):
    """An encoded weight is `dynamic_fake_quantize` of it to the bit, short last blocks included."""
    qtype, scale_type, block_size = FORMATS[name]
    rng = np.random.default_rng(seed)
    shape = (k, rows) if axis == 0 else (rows, k)
    values = (rng.standard_normal(shape) * 10 ** rng.uniform(-decades, decades, shape)).astype(np.float32)
    values[rng.random(shape) < 0.1] = 0
    spec = QuantSpec(qtype=qtype, scale_type=scale_type, axis=axis, block_size=block_size)
    encoding = encode_constant(
        Placement(tensor="w", role="weight", spec=spec, uses=(Use("n", 1),), why=""), values
    )
    expected, scale, _ = dynamic_fake_quantize(
        values, qtype=qtype, scale_type=scale_type, axis=axis, block_size=block_size
    )
    same_bits(encoding.fake_quantize(values), expected)
    same_bits(encoding.scale, scale)


@pytest.mark.grid
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("proto", "axis"),
    [(linear(70, 6), 0), (gemm(0, 1), 1), (transposed_weight(), 1)],
    ids=["short", "gemm", "turned"],
)
def test_the_written_weight(name, proto, axis):
    """The constant of the fake-quant model is rounded in blocks along the summed axis of its operator."""
    staged = stage(proto, blocks_recipe(name))
    (placement,) = staged.plan.weights
    qtype, scale_type, block_size = FORMATS[name]
    assert (placement.spec.granularity.axis, placement.spec.granularity.block_size) == (axis, block_size)
    expected, *_ = dynamic_fake_quantize(
        constants(proto)["w"], qtype=qtype, scale_type=scale_type, axis=axis, block_size=block_size
    )
    same_bits(constants(simulated(staged))["w/fq"], expected)


def test_scales_are_of_their_type():
    """Scales of e8m0 are powers of two; scales of e4m3 are e4m3 numbers times amax / (224 * 6)."""
    e8m0 = stage(linear(70, 6), "mxfp4").encodings["w"]
    np.testing.assert_array_equal(np.frexp(e8m0.scale)[0], 0.5)
    assert e8m0.global_scale is None
    e4m3 = stage(linear(70, 6), "nvfp4").encodings["w"]
    amax = np.abs(constants(linear(70, 6))["w"]).max()
    assert e4m3.global_scale == np.float32(amax) / np.float32(224 * 6)
    small = e4m3.block_scales
    assert small.dtype.name == "float8_e4m3fn"
    same_bits(small.astype(np.float32) * np.float32(e4m3.global_scale), e4m3.scale)


@pytest.mark.parametrize("name", ["nvfp4", "mxint8"])
def test_encodings_survive_their_file(name, tmp_path: Path):
    """Global scales and empty lists are written and read back."""
    staged = stage(linear(70, 6), name)
    staged.encodings.save(tmp_path / "e.json")
    assert Encodings.load(tmp_path / "e.json") == staged.encodings
    staged.plan.save(tmp_path / "p.json")
    assert Plan.load(tmp_path / "p.json") == staged.plan


# Activations


@pytest.mark.grid
@pytest.mark.parametrize("name", SIMULATED)
@pytest.mark.parametrize("model", [gemm, projected_attention, conv_relu, conv_transpose])
def test_activations_of_the_simulation(name, model):
    """Every dynamic activation is what NumPy's `dynamic_fake_quantize` makes of it, to the bit."""
    staged = stage(model(), name)
    tensors = [p.tensor for p in staged.plan.placements if p.role == "activation"]
    session = Session(
        with_outputs(simulated(staged), [*tensors, *(f"{t}/fq" for t in tensors)]), 1, exact=True
    )
    for tensor in tensors:
        (y,) = session.run(staged.feed, [f"{tensor}/fq"])
        x = staged.feed["x"] if tensor == "x" else session.run(staged.feed, [tensor])[0]
        spec, encoding = staged.encodings[tensor].spec, staged.encodings[tensor]
        expected, *_ = dynamic_fake_quantize(
            x,
            qtype=spec.qtype,
            scale_type=spec.scale_type,
            global_scale=encoding.global_scale,
            **spec.granularity.attributes,
        )
        same_bits(y, expected)
        same_bits(encoding.fake_quantize(x), expected)


def test_the_global_scale_comes_from_the_observed_range():
    """Scale type e4m3 has a constant global scale of amax / (224 * 6) over all feeds, half of it headroom."""
    staged = stage(linear(70, 6), "nvfp4")
    amax = np.abs(staged.feed["x"]).max()
    assert staged.encodings["x"].global_scale == np.float32(amax) / np.float32(224 * 6)
    assert graph_text(simulated(staged))[0] == (
        "[x/fq] x/fq = DynamicFakeQuantize <qtype=b'float4e2m1' scale_type=b'e4m3' symmetric=1 "
        "axis=1 block_size=16> (x, x/global_scale)"
    )


@pytest.mark.parametrize("growth", [0.5, 1.0, 2.0, 4.0])
def test_unseen_activations_by_hand(growth):
    """Activations in NVFP4 are what ml_dtypes casts make; beyond twice the known range they saturate."""
    staged = stage(linear(64, 6), "nvfp4")
    x = staged.feed["x"] * np.float32(growth)
    (y,) = Session(with_outputs(simulated(staged), ["x/fq"]), 1, exact=True).run({"x": x}, ["x/fq"])
    blocks, shared = x.reshape(-1, 16), np.float32(staged.encodings["x"].global_scale)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    wanted = np.minimum(amax / np.float32(6) / shared, np.float32(448))
    scale = wanted.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * shared
    steps = np.clip(blocks / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    same_bits(y, (steps * scale).reshape(x.shape))
    assert (np.abs(y).max() < 0.6 * np.abs(x).max()) == (growth > HEADROOM)


def test_scales_of_scales_stay_in_float32():
    """A global scale that a half type represents exactly stays float32: TensorRT multiplies NVFP4 so only."""
    proto = unmeasured(linear(64, 32), whole_recipe("tensorrt-nvfp4"), "fp16")
    scales = [t for t in proto.graph.initializer if t.name.endswith("global_scale")]
    assert len(scales) == 2 and {t.data_type for t in scales} == {onnx.TensorProto.FLOAT}
    assert {float(np.float16(onnx.numpy_helper.to_array(t))) for t in scales} == {2.0**-6}


@pytest.mark.parametrize(("name", "observed"), [(n, n == "nvfp4") for n in SIMULATED])
def test_what_needs_no_statistics_gets_no_observer(name, observed):
    """Only the global scale of NVFP4 is a constant of the data; the rest is planned and not observed."""
    staged = stage(linear(70, 6), name)
    assert [p.tensor for p in staged.plan.activations] == (["x"] if observed else [])
    assert [p.tensor for p in staged.plan.unobserved] == ([] if observed else ["x"])
    assert list(staged.statistics.tensors) == (["x"] if observed else [])
    assert staged.encodings["x"].scale.size == 0
    assert "1 activations (1 dynamic), 1 weights" in plan_summary(staged.plan)


def test_rows():
    """Granularity per_row: one scale for all that an output element sums over, of either operand."""
    plan = planned(projected_attention(), dynamic_recipe(granularity="per_row"))
    found = {p.tensor: p.spec.granularity.block_shape for p in plan.unobserved}
    assert found["x"] == (1, 1, -1) and found["kt"] == (1, -1, 1)
    staged = stage(gemm(1, 0), dynamic_recipe(granularity="per_row"))
    assert staged.plan.unobserved[0].spec.granularity.block_shape == (-1, 1)
    (y,) = Session(with_outputs(simulated(staged), ["x/fq"]), 1).run(staged.feed, ["x/fq"])
    x = staged.feed["x"]
    same_bits(y, dynamic_fake_quantize(x, qtype="int8", block_shape=(-1, 1))[0])
    assert staged.plan.unobserved[0].why == "input of Gemm, a scale for each row"


@pytest.mark.parametrize(("make", "axis"), [(conv_relu, 1), (conv_transpose, 0)])
def test_convolutions_have_blocks_of_input_channels(make, axis):
    """A convolution sums over channels and window: blocks of both operands go along the channels."""
    specs = {p.tensor: str(p.spec.granularity) for p in planned(make(), "mxfp8").placements}
    assert specs == {"x": "blocks of 32 on axis 1", "w": f"blocks of 32 on axis {axis}"}


def test_grouped_convolutions_have_none():
    """A block would reach into the next group: a scale for the input, one for each output channel."""
    proto = build(
        "g (float[N,4,6,6] x) => (float[N,4,4,4] y) { [dw] y = Conv <group = 4> (x, w) }",
        {"w": weights(4, 1, 3, 3)},
    )
    found = {p.tensor: (str(p.spec), p.why) for p in planned(proto, "mxfp8").placements}
    assert found == {
        "x": (
            "float8e4m3fn symmetric per-tensor with e8m0 scales, dynamic",
            "input of Conv, per tensor: blocks go along one summed axis, and Conv has none",
        ),
        "w": (
            "float8e4m3fn symmetric per-axis 0 with e8m0 scales",
            "weight of Conv, per output channel: blocks go along one summed axis, and Conv has none",
        ),
    }


def test_an_activation_of_unknown_rank():
    """Rows and blocks go by axis: without a rank the operator stays in float, with the reason."""
    proto = build(
        "g (float[N,4] x, int64[M] s) => (float[M] z) { r = Reshape (x, s) [mm] y = MatMul (r, w) "
        "z = ReduceSum <keepdims = 0> (y) }",
        {"w": weights(4, 3)},
    )
    with pytest.raises(ModelError, match="'r' has no known rank, and its rows and blocks go by axis"):
        planned(proto, "mxfp8")
    assert planned(proto, dynamic_recipe()).unobserved[0].spec.granularity.axis is None


@pytest.mark.parametrize("recipe", ["tensorrt-nvfp4", "tensorrt-mxfp8"])
def test_an_activation_whose_rank_only_a_run_tells(recipe):
    """The plan has the rank from the data, and with it the last size; the model is written without them."""
    proto = build(
        """g (float[N,256] x, int64[K] to) => (float[A,B,64] y) {
            q = Reshape (x, to) r = Add (q, b) y = MatMul (r, w) }""",
        {"w": weights(256, 64), "b": weights(256)},
    )
    samples = [{"x": weights(4, 256, seed=n), "to": np.asarray([2, 2, 256])} for n in range(4)]
    written = quantize(proto, samples, recipe=load_recipe(recipe).override(small_shapes="quantize")).qdq
    (codes,) = (node for node in written.graph.node if "DynamicQuantize" in node.op_type)
    assert codes.input[0] == "r"


def test_one_tensor_summed_along_two_axes():
    """A tensor is rounded once: readers that sum along different axes are refused with the remedy."""
    with pytest.raises(RecipeError) as caught:
        planned(same_tensor_twice(), "mxint8")
    assert str(caught.value) == (
        "tensor 'h' is summed along another axis by 'mm' than by 'mm', and is rounded once: int8 symmetric "
        "blocks of 32 on axis 1 with e8m0 scales, dynamic or int8 symmetric blocks of 32 on axis 0 with e8m0 "
        "scales, dynamic; leave one of the two in float by an override"
    )


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        (name, recipe)
        for name in ("conv_relu", "gemm", "transposed_weight", "left_constant", "inner_output")
        for recipe in ("tensorrt-int8", "nvfp4", "mxint8", "onnxruntime-uint8-dynamic")
        if (name, recipe) != ("conv_relu", "onnxruntime-uint8-dynamic")  # it has no dynamic Conv
    ],
)
def test_switch(name, recipe):
    """Not fed, or true, the model is the fixed one; false, it is the float model: all to the bit."""
    staged = stage(BUILDERS[name](), recipe)
    switchable = Session(simulated(staged, switchable=True), 1, exact=True)
    for switch, twin in ((None, simulated(staged)), (True, simulated(staged)), (False, staged.model.proto)):
        feed = staged.feed if switch is None else staged.feed | {ENABLED_INPUT: np.asarray(switch)}
        for one, other in zip(
            switchable.run(feed), Session(twin, 1, exact=True).run(staged.feed), strict=True
        ):
            # onnxruntime sums a constant matrix in another order than one that a node gives.
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


# Models written for ONNX Runtime


@pytest.mark.parametrize("name", ["gemm", "attention", "transposed_weight", "tied_embedding"])
def test_dynamic_uint8_twins(name):
    """DynamicQuantizeLinear and the simulation give the same bits, in every tensor and output."""
    staged = stage(BUILDERS[name](), "onnxruntime-uint8-dynamic")
    assert "DynamicQuantizeLinear" in {node.op_type for node in qdq_of(staged).graph.node}
    for tensor, one, other in zip(*twins(staged), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=tensor)


def test_dynamic_uint8_at_the_edges():
    """Zeros alone, one sign alone and signed zeros: the same bits as well."""
    staged = stage(linear(4, 3), "onnxruntime-uint8-dynamic")
    for rows in ([[0, 0, 0, 0]], [[-0.0, 0, 1e-9, 5]], [[-3, -2, -1, -0.5]], [[2, 3, 4, 5]]):
        feed = {"x": np.asarray(rows, np.float32)}
        one, other = (
            Session(with_outputs(proto, [name]), 1, exact=True).run(feed, [name])[0]
            for proto, name in ((simulated(staged), "x/fq"), (qdq_of(staged), "x/dq"))
        )
        same_bits(one, other)


@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp8-e5m2", "mxint8"])
def test_mx_weights_for_onnxruntime(name):
    """Weight-only MX of 8 bits is a blocked DequantizeLinear with float32 powers of two, exactly."""
    staged = stage(linear(70, 6), blocks_recipe(name, "onnxruntime", activations=None))
    proto = qdq_of(staged)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == ["DequantizeLinear", "MatMul"]
    assert default_opset(proto) == 21
    assert constants(proto)["w/scale"].shape == (3, 6)
    for tensor, one, other in zip(*twins(staged), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=tensor)


def test_a_plan_with_nothing_to_observe(tmp_path: Path):
    """`quantize` works where no activation needs statistics; the data serve the comparison."""
    feeds = [feed_for(gemm(), seed) for seed in range(3)]
    options = RunOptions(exact=True)
    result = quantize(gemm(), feeds, tmp_path / "m.onnx", recipe="onnxruntime-uint8-dynamic", options=options)
    assert result.statistics.tensors == {} and result.evaluation.feeds == 3
    assert [c.candidate for c in result.evaluation.candidates] == ["simulated", "Q/DQ"]
    assert result.evaluation.candidates[0].outputs == result.evaluation.candidates[1].outputs
    (x, w) = quantized_tensors(result.model, result.plan, result.statistics, result.encodings)
    assert (x.calibrator, x.sqnr_db, x.counts) == ("dynamic", None, ()) and w.sqnr_db is not None


def test_the_calibrator_of_dynamic_activations():
    """It has no part in them: to ask for one is an error, and the plan names none but minmax."""
    with pytest.raises(RecipeError, match="has dynamic scales for activations: none needs"):
        load_recipe("nvfp4").override(activations={"calibrator": "mse"})
    plan = planned(linear(70, 6), dynamic_recipe(calibrator="mse"))
    assert {p.calibrator for p in plan.placements} == {"minmax"}


# Models written for TensorRT


NVFP4 = """
[x/q] x/q, x/block_scale = TRT_FP4DynamicQuantize <axis=1 block_size=16 scale_type=17> (x, x/global_scale)
[x/scale] x/scale = DequantizeLinear (x/block_scale, x/global_scale)
[x/dq] x/dq = DequantizeLinear <axis=1 block_size=16> (x/q, x/scale)
[w/scale] w/scale = DequantizeLinear (w/block_scale, w/global_scale)
[w/dq] w/dq = DequantizeLinear <axis=0 block_size=16> (w/q, w/scale)
[mm] y = MatMul (x/dq, w/dq)
"""
MXFP8 = """
[x/q] x/q, x/block_scale = TRT_MXFP8DynamicQuantize <axis=1 block_size=32 output_dtype=17> (x)
[x/dq] x/dq = TRT_MXFP8DequantizeLinear <axis=1 block_size=32 output_dtype=1> (x/q, x/block_scale)
[w/dq] w/dq = TRT_MXFP8DequantizeLinear <axis=0 block_size=32 output_dtype=1> (w/q, w/scale)
[mm] y = MatMul (x/dq, w/dq)
"""


@pytest.mark.parametrize(
    ("recipe", "text", "opset"), [("tensorrt-nvfp4", NVFP4, 23), ("tensorrt-mxfp8", MXFP8, 19)]
)
def test_the_forms_of_tensorrt(recipe, text, opset):
    """A form that TensorRT for RTX 1.7.1 has parsed and built; ONNX's checker takes it."""
    proto = qdq_of(stage(linear(64, 6), recipe))
    assert graph_text(proto) == text.strip().splitlines()
    assert {o.domain: o.version for o in proto.opset_import} == {"": opset, "trt": 1}
    onnx.checker.check_model(proto, full_check=True)


def test_stored_nvfp4_weights():
    """Codes, e4m3 scales and global scale, multiplied as DequantizeLinear does, are the rounded weight."""
    staged = stage(linear(64, 6), "tensorrt-nvfp4")
    stored = constants(qdq_of(staged))
    kinds = {name: stored[name].dtype.name for name in ("w/q", "w/block_scale", "w/global_scale")}
    assert list(kinds.values()) == ["float4_e2m1fn", "float8_e4m3fn", "float32"]
    scale = stored["w/block_scale"].astype(np.float32) * stored["w/global_scale"]
    same_bits(dequantize(stored["w/q"], scale, axis=0, block_size=16), constants(simulated(staged))["w/fq"])


def test_stored_mxfp8_weights():
    """Codes times 2^(e - 127) are the rounded weight; e is a uint8, the only form that TensorRT reads."""
    staged = stage(linear(64, 6), "tensorrt-mxfp8")
    stored = constants(qdq_of(staged))
    assert (stored["w/q"].dtype.name, stored["w/scale"].dtype.name) == ("float8_e4m3fn", "uint8")
    scale = np.exp2(stored["w/scale"].astype(np.float32) - 127)
    same_bits(dequantize(stored["w/q"], scale, axis=0, block_size=32), constants(simulated(staged))["w/fq"])


def test_the_skip_branch_of_a_sum_stays_in_float():
    """An Add takes no block formats: a residual block of MatMuls has quantizers on the MatMuls only."""
    proto = build(
        """g (float[N,64] x) => (float[N,64] y) {
            [one] a = MatMul (x, w1) [add] s = Add (a, x) [two] y = MatMul (s, w2) }""",
        {"w1": weights(64, 64), "w2": weights(64, 64, seed=1)},
    )
    assert "Add (residual)" in {row.op_type for row in planned(proto, "tensorrt-int8").coverage()}
    plan = planned(proto, "tensorrt-nvfp4")
    uses = [(p.tensor, p.uses) for p in plan.activations]
    assert uses == [("x", (Use("one", 0),)), ("s", (Use("two", 0),))]


IN_FLOAT = {
    "conv": (conv_relu(), "tensorrt-nvfp4", "TensorRT has NVFP4 for MatMul and Gemm only"),
    "48": (
        linear(48, 6),
        "tensorrt-mxfp8",
        "TensorRT needs MXFP8 blocks that divide the summed axis: 48 is not a multiple of 32",
    ),
    "one block": (
        build("g (float[4,16] x) => (float[4,8] y) { y = MatMul (x, w) }", {"w": weights(16, 8)}),
        "tensorrt-nvfp4",
        "TensorRT has NVFP4 of fixed sizes for two blocks and more along the summed axis, not one",
    ),
    "one column": (
        build("g (float[N,16] x) => (float[N,1] y) { y = MatMul (x, w) }", {"w": weights(16, 1)}),
        "tensorrt-nvfp4",
        "TensorRT has NVFP4 of fixed sizes for two blocks and more along the summed axis, not one",
    ),
    "open": (
        build("g (float[M,K] a, float[K,N] b) => (float[M,N] y) { [mm] y = MatMul (a, b) }"),
        "tensorrt-nvfp4",
        "TensorRT needs NVFP4 blocks that divide the summed axis, and the summed axis of 'a' is open",
    ),
}


@pytest.mark.parametrize("case", IN_FLOAT)
def test_what_tensorrt_would_run_in_float_stays_so(case):
    """A node whose blocks TensorRT would not take stays in float with the reason."""
    proto, recipe, why = IN_FLOAT[case]
    with pytest.raises(ModelError) as caught:
        planned(proto, recipe)
    assert why in str(caught.value)


@pytest.mark.parametrize("rows", ["3", "N"])
@pytest.mark.parametrize(("recipe", "block"), [("tensorrt-nvfp4", 16), ("tensorrt-mxfp8", 32)])
def test_blocks_of_each_row(recipe, block, rows):
    """TensorRT builds the plan, also of one block a row with an open size, and of an odd number of scales."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    proto = build(
        f"g (float[{rows},{3 * block}] x) => (float[{rows},32] y) {{ a = MatMul (x, w) y = MatMul (a, v) }}",
        {"w": weights(3 * block, block), "v": weights(block, 32)},
    )
    staged = stage(proto, recipe)
    low = {use.node for placement in staged.plan.placements for use in placement.uses}
    assert len(low) == (1 if rows == "3" else 2)
    result = onnxfq.check(qdq_of(staged), "tensorrt", build=BuildOptions())
    assert not result.findings and len(result.engine) == len(low), result.table()


STATIC = {"qtype": "int8"}
REFUSED = {
    "mxfp6": (
        blocks_recipe("mxfp6-e2m3", "tensorrt"),
        "TensorRT has no float6e2m3 blocks of 32 on axis 1 with e8m0 scales; use recipe tensorrt-mxfp8 or "
        "tensorrt-nvfp4, or target simulation",
    ),
    "mxfp4": (blocks_recipe("mxfp4", "tensorrt"), "TensorRT has no float4e2m1 blocks of 32 on axis 1"),
    "mxfp4 beside nvfp4": (
        blocks_recipe("nvfp4", "tensorrt", weights=blocks_recipe("mxfp4").weights),
        "TensorRT has no float4e2m1 blocks of 32 on axis 0 with e8m0 scales; use recipe tensorrt-mxfp8 or "
        "tensorrt-nvfp4, or target simulation",
    ),
    "mxint8": (blocks_recipe("mxint8", "tensorrt"), "TensorRT has no int8 blocks of 32 on axis 1"),
    "e5m2": (blocks_recipe("mxfp8-e5m2", "tensorrt"), "TensorRT has no float8e5m2 blocks of 32 on axis 1"),
    "block 16": (
        blocks_recipe(
            "mxfp8-e4m3",
            "tensorrt",
            weights=blocks_recipe("mxfp8-e4m3").weights.model_copy(update={"block_size": 16}),
        ),
        "TensorRT has no float8e4m3fn blocks of 16 on axis 0 with e8m0 scales",
    ),
    "dynamic int8": (
        dynamic_recipe("tensorrt"),
        "TensorRT has no DynamicQuantizeLinear; use dynamic: false, or recipe tensorrt-mxfp8 or "
        "tensorrt-nvfp4",
    ),
    "mixed": (
        blocks_recipe("mxfp8-e4m3", "tensorrt", activations=STATIC),
        "TensorRT multiplies two tensors of one format only, not int8 and float8e4m3fn symmetric blocks",
    ),
    "fractions for tensorrt": (
        one_format("int8", "tensorrt", symmetric=False, zero_point="fractional"),
        "TensorRT takes zero points of 0 only",
    ),
    "fractions for onnxruntime": (
        one_format("uint8", "onnxruntime", zero_point="fractional"),
        "ONNX Runtime takes integer zero points only; use zero_point: integer, or target simulation",
    ),
    "dynamic int8 for onnxruntime": (
        dynamic_recipe("onnxruntime"),
        "ONNX Runtime has dynamic scales for uint8 asymmetric per-tensor, dynamic only, not int8 symmetric "
        "per-tensor, dynamic; use recipe onnxruntime-uint8-dynamic, dynamic: false, or target simulation",
    ),
    "mxfp4 for onnxruntime": (
        blocks_recipe("mxfp4", "onnxruntime"),
        "ONNX Runtime has no QuantizeLinear for float4e2m1; use float8e4m3fn, or target simulation",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_target_lacks_is_refused(case):
    """One line that names the node, the tensor, the target, what it lacks and what to use."""
    recipe, words = REFUSED[case]
    with pytest.raises(RecipeError) as caught:
        planned(linear(64, 6), recipe)
    message = str(caught.value)
    assert message.startswith("node 'mm', tensor ") and words in message and "\n" not in message


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "fractional"])
def test_forms_that_no_standard_model_has(recipe):
    """A simulation plan of such tensors cannot be written as Q/DQ: one line with the remedy."""
    staged = stage(linear(64, 6), fractional() if recipe == "fractional" else recipe)
    with pytest.raises(PlanError) as caught:
        with_target_qdq(staged.model, staged.plan, staged.encodings)
    assert str(caught.value).startswith("tensor 'x': target simulation has no form of ")
    assert str(caught.value).endswith("; insert fake-quant nodes instead")


def test_an_edited_plan_of_other_blocks():
    """A person may edit a plan; blocks that TensorRT would misread are refused in one line."""
    staged = stage(linear(40, 6), "nvfp4")
    plan = staged.plan.model_copy(update={"target": "tensorrt"})
    with pytest.raises(PlanError) as caught:
        with_target_qdq(staged.model, plan, staged.encodings)
    assert str(caught.value) == (
        "tensor 'x': TensorRT needs blocks of 16 that divide axis 1, got shape ['N', 40]; remove the tensor "
        "from the plan"
    )


# Models that ONNX Runtime cannot run


def test_quantize_says_what_was_not_run(tmp_path: Path):
    """The numbers equal the fake-quant model's, and all reports say why; the file is written."""
    why = "ONNX Runtime has no TRT_FP4DynamicQuantize, an operator of TensorRT"
    proto = linear(64, 6)
    result = quantize(proto, [feed_for(proto)], tmp_path / "m.onnx", recipe=whole_recipe("tensorrt-nvfp4"))
    assert [c.candidate for c in result.evaluation.candidates] == ["simulated"]
    note = f"Q/DQ model not run: {why}"
    assert result.evaluation.notes == (note,)
    for text in (result.evaluation.table(), quantize_summary(result), render_report(result)):
        assert note in text
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    with pytest.raises(ModelError) as caught:
        score_models(proto, {"trt": onnx.load(tmp_path / "m.onnx")}, [feed_for(proto)])
    assert str(caught.value) == f"the model cannot be run: {why}; run the fake-quant model instead"


@pytest.mark.parametrize("qtype", ["float4e2m1", "float6e2m3", "float6e3m2", "float8e4m3fn", "int2"])
def test_types_without_kernels_are_known(qtype):
    """Exactly the models that onnxruntime refuses are called so beforehand."""
    proto = qdq_of(stage(gemm(), one_format(qtype, "simulation")))
    why = explain_unsupported(proto)
    lacks = qtype.startswith(("float4", "float6"))
    assert why == (f"ONNX Runtime has no kernels for {qtype}" if lacks else "")
    if not why:
        Session(proto, 1)


def test_what_runs_is_not_called_so():
    """Models of every recipe for ONNX Runtime, and fake-quant models, are run."""
    for name in RECIPES:
        staged = stage(linear(256 if name == "tensorrt-int4" else 128, 6), name)
        assert explain_unsupported(simulated(staged)) == ""
        if RECIPES[name].target == "onnxruntime":
            assert explain_unsupported(qdq_of(staged)) == ""


# Fractional zero points


def fractional(qtype: str = "uint8", **changes: object) -> Recipe:
    """Return a simulation recipe with fractional zero points."""
    scheme = {"qtype": qtype, "symmetric": False, "zero_point": "fractional", "calibrator": "minmax"}
    return Recipe.model_validate(
        {"name": "fractions", "target": "simulation", "activations": scheme, "weights": scheme | changes}
    )


@pytest.mark.parametrize("qtype", ["uint8", "int8", "uint4", "int8[-100,90]"])
def test_fractional_zero_points(qtype, tmp_path: Path):
    """The zero point is not rounded; weights and activations of the simulation are NumPy's, to the bit."""
    staged = stage(linear(70, 6), fractional(qtype))
    staged.encodings.save(tmp_path / "e.json")
    assert Encodings.load(tmp_path / "e.json") == staged.encodings
    encoding = staged.encodings["x"]
    x, w = staged.feed["x"], constants(linear(70, 6))["w"]
    scale, zero_point = choose_qparams(
        x.min(), x.max(), encoding.spec.qtype, False, ParamRules(fractional_zero_point=True)
    )
    assert (encoding.scale, encoding.zero_point) == (scale, zero_point)
    assert zero_point != np.rint(zero_point)
    proto = simulated(staged)
    (y,) = Session(with_outputs(proto, ["x/fq"]), 1).run(staged.feed, ["x/fq"])
    same_bits(y, fake_quantize(x, scale, zero_point, qtype=qtype))
    other = staged.encodings["w"]
    expected = fake_quantize(w, other.scale, other.zero_point, qtype=qtype, axis=1)
    same_bits(constants(proto)["w/fq"], expected)


def test_noise_of_fractional_zero_points():
    """The expected noise of the report is near the noise of the values themselves."""
    proto = linear(70, 6)
    staged = stage(proto, fractional("uint4"))
    row = quantized_tensors(staged.model, staged.plan, staged.statistics, staged.encodings)[0]
    x = staged.feed["x"].astype(np.float64)
    noise = x - staged.encodings["x"].fake_quantize(staged.feed["x"])
    measured = 10 * np.log10((x**2).sum() / (noise**2).sum())
    # 280 values: the histogram knows them to 2^-6 of their size.
    assert row.sqnr_db == pytest.approx(measured, abs=0.5)


# Overrides


def test_an_override_leaves_activations_in_float():
    """`activations: null` for some nodes makes these weight-only; a later override may take it back."""
    proto = build(
        """g (float[N,8] x) => (float[N,8] y) {
            [one] a = MatMul (x, w1) [relu] r = Relu (a) [two] y = MatMul (r, w2) }""",
        {"w1": weights(8, 8), "w2": weights(8, 8, seed=1)},
    )
    base = load_recipe("onnxruntime-int8").model_dump()
    off, on = {"nodes": ["two"], "activations": None}, {"tensors": ["r"], "activations": {"qtype": "int16"}}
    plan = planned(proto, Recipe.model_validate(base | {"overrides": [off]}))
    assert [p.tensor for p in plan.placements] == ["x", "w1", "w2"]
    assert [str(row) for row in plan.coverage()] == ["MatMul 2/2"]
    back = planned(proto, Recipe.model_validate(base | {"overrides": [off, on]}))
    specs = [str(p.spec) for p in back.activations]
    assert specs == ["uint8 asymmetric per-tensor", "int16 symmetric per-tensor"]

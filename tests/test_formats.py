"""Every number format from the recipe to the written model: simulated and deployed are twins."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import (
    Staged,
    attention,
    build,
    constants,
    conv_relu,
    feed_for,
    gemm,
    graph_text,
    planned,
    stage,
    transposed_weight,
    weights,
)
from hypothesis import given
from hypothesis import strategies as st
from test_agreement import twins

from onnxfq import qtypes
from onnxfq.calibration import calibrate
from onnxfq.encoding import Encoding, Encodings
from onnxfq.errors import ModelError, PlanError, RecipeError
from onnxfq.graph.model import default_opset
from onnxfq.numerics import fake_quantize
from onnxfq.passes.insert_fake_quantize import InsertFakeQuantize
from onnxfq.passes.insert_qdq import InsertQdq
from onnxfq.pipeline import quantize
from onnxfq.qtypes import qtype_by_name
from onnxfq.recipe import Recipe, load_recipe
from onnxfq.runtime.session import Session

# The lowest opset that can carry each: 8 bits 13, float8 19, 4 and 16 bits 21, 2 bits 25.
OPSETS = (
    dict.fromkeys(["int8", "uint8", "int5", "uint6", "int7", "int8[-127,127]"], 13)
    | dict.fromkeys(["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"], 19)
    | dict.fromkeys(["int4", "uint4", "int16", "uint16", "int3", "uint3", "int9", "uint12", "int15"], 21)
    | dict.fromkeys(["int4[-7,7]", "int16[-300,300]"], 21)
    | dict.fromkeys(["int2", "uint2", "int2[-1,1]"], 25)
)


def recipe(qtype: str, target: str = "onnxruntime", **changes: object) -> Recipe:
    """Return a recipe with `qtype` everywhere, symmetric where it can be; changes: of the weights."""
    found = qtype_by_name(qtype)
    scheme = {"qtype": qtype, "symmetric": found.qmin < 0}
    return Recipe.model_validate(
        {
            "name": "all",
            "target": target,
            "activations": scheme | {"calibrator": "minmax"},
            "weights": scheme | changes,
        }
    )


def qdq_of(staged: Staged) -> onnx.ModelProto:
    """Return the Q/DQ model."""
    return InsertQdq(staged.plan, staged.encodings).run(staged.model).model.proto


MODELS = {
    "conv": lambda: conv_relu(opset=13),
    "gemm": gemm,
    "attention": attention,
    "turned": transposed_weight,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("qtype", OPSETS)
def test_twins_in_every_format(qtype: str, name: str) -> None:
    """Simulated and deployed tensors are the same to the bit in every format that onnxruntime runs."""
    for tensor, simulated, deployed in zip(*twins(stage(MODELS[name](), recipe(qtype))), strict=True):
        np.testing.assert_array_equal(simulated, deployed, err_msg=tensor)


@pytest.mark.parametrize("qtype", OPSETS)
def test_the_lowest_opset(qtype: str) -> None:
    """The written model passes ONNX's checker, at the lowest opset that has the format."""
    proto = qdq_of(stage(conv_relu(opset=13), recipe(qtype)))
    onnx.checker.check_model(proto, full_check=True)
    assert default_opset(proto) == OPSETS[qtype]


@pytest.mark.parametrize("qtype", OPSETS)
def test_the_type_is_said_once(qtype: str) -> None:
    """Below opset 21 the zero point says the type, above output_dtype or a zero point that is not 0."""
    proto = qdq_of(stage(conv_relu(opset=13), recipe(qtype)))
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            says = [a.name for a in node.attribute if a.name == "output_dtype"] + list(node.input[2:])
            assert len(says) == 1
            assert (says == ["output_dtype"]) <= (OPSETS[qtype] >= 21)


@pytest.mark.parametrize("qtype", ["int5", "int7", "uint6", "int8[-127,127]", "int3", "int12", "int2[-1,1]"])
def test_limits_are_never_left(qtype: str) -> None:
    """Odd widths and limits of one's own hold for stored weights and for activations far out of range."""
    found = qtype_by_name(qtype)
    staged = stage(conv_relu(), recipe(qtype))
    proto = qdq_of(staged)
    assert "Clip" in {node.op_type for node in proto.graph.node}
    stored = constants(proto)["w/q"].astype(np.int64)
    assert found.qmin <= stored.min() and stored.max() <= found.qmax
    proto.graph.node.append(onnx.helper.make_node("Cast", ["x/q"], ["numbers"], to=onnx.TensorProto.FLOAT))
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info("numbers"))
    far = feed_for(conv_relu())["x"] * np.float32(1e6)
    _, numbers = Session(proto, 1, exact=True).run({"x": far})
    assert (numbers.min(), numbers.max()) == (found.qmin, found.qmax)


@given(
    st.sampled_from(["int5", "int12", "int8[-127,127]", "int16[-300,300]", "uint6"]),
    st.floats(2.0**-126, 2.0**100, width=32),
    st.integers(0, 63),
)
def test_clip_is_exact(qtype: str, scale: float, zero_point: int) -> None:
    """The real number of a limit, rounded to float32, is quantized to that very limit."""
    found = qtype_by_name(qtype)
    s, z = np.float32(scale), zero_point if found.qmin == 0 else 0
    for limit in (found.qmin, found.qmax):
        real = np.float32((limit - z) * np.float64(s))
        assert np.rint(real / s) + z == limit


BLOCKS = {
    "rows and columns": ((4, 6), [2, 3]),
    "short last": ((5, 7), [2, 3]),
    "whole axis": ((4, 6), [-1, 2]),
    "per tensor": ((4, 6), [-1, -1]),
    "per axis": ((4, 6), [-1, 1]),
    "larger than the axis": ((4, 6), [8, 2]),
    "one each": ((4, 6), [1, 1]),
}


@pytest.mark.parametrize("qtype", ["int8", "uint4", "float8e4m3fn", "int5"])
@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_along_one_axis_are_the_same(case: str, qtype: str) -> None:
    """N-D blocks, which ONNX lacks, become blocks along one axis without a changed bit."""
    shape, blocks = BLOCKS[case]
    proto = build(
        f"g (float[N,{shape[0]}] x) => (float[N,{shape[1]}] y) {{ [mm] y = MatMul (x, w) }}",
        {"w": weights(*shape)},
    )
    staged = stage(proto, recipe(qtype, granularity="block_shape", block_shape=blocks))
    direct = fake_quantize(
        constants(proto)["w"],
        staged.encodings["w"].scale_array,
        staged.encodings["w"].zero_point_array,
        qtype=qtype,
        block_shape=blocks,
    )
    names, simulated, deployed = twins(staged)
    at = names.index("w")
    np.testing.assert_array_equal(simulated[at], direct)
    np.testing.assert_array_equal(deployed[at], direct)
    onnx.checker.check_model(qdq_of(staged), full_check=True)


def test_fewest_scales_are_stored() -> None:
    """Of the axes that blocks may go along, the one that leaves the fewest scales is taken."""
    proto = build("g (float[N,8] x) => (float[N,12] y) { y = MatMul (x, w) }", {"w": weights(8, 12)})
    written = qdq_of(stage(proto, recipe("int8", granularity="block_shape", block_shape=[2, 6])))
    assert constants(written)["w/scale"].shape == (8, 2)
    assert "axis=1 block_size=6" in next(line for line in graph_text(written) if line.startswith("[w/dq]"))
    assert default_opset(written) == 21


@pytest.mark.parametrize("blocks", [[-1, -1], [-1, 1], [1, -1]], ids=str)
def test_simple_blocks_need_no_new_opset(blocks: list[int]) -> None:
    """N-D blocks that are per tensor or per axis are written so, for every opset."""
    proto = build("g (float[N,4] x) => (float[N,6] y) { y = MatMul (x, w) }", {"w": weights(4, 6)}, opset=13)
    written = qdq_of(stage(proto, recipe("int8", granularity="block_shape", block_shape=blocks)))
    assert default_opset(written) == 13
    assert constants(written)["w/scale"].ndim == (blocks != [-1, -1])


def test_blocks_follow_a_transpose() -> None:
    """block_shape speaks of the axes that the operator reads; the constant is stored the other way round."""
    plan = planned(transposed_weight(), recipe("int8", granularity="block_shape", block_shape=[2, 1]))
    assert plan.weights[0].spec.block_shape == (1, 2)


def test_blocks_of_another_rank_fall_back() -> None:
    """A weight with another number of axes is quantized per output channel, and the plan says why."""
    plan = planned(conv_relu(), recipe("int8", granularity="block_shape", block_shape=[2, 1]))
    assert plan.weights[0].spec.axis == 0
    assert plan.weights[0].why == (
        "weight of Conv, per output channel: block_shape [2, 1] is not for its 4 axes"
    )


def test_power_of_two_scales() -> None:
    """power_of_two makes every scale a power of two, in both models."""
    base = recipe("int8", power_of_two=True).model_dump()
    base["activations"]["power_of_two"] = True
    staged = stage(conv_relu(), Recipe.model_validate(base))
    for encoding in staged.encodings.encodings:
        fractions, _ = np.frexp(encoding.scale_array)
        np.testing.assert_array_equal(fractions, 0.5)
    for _, simulated, deployed in zip(*twins(staged), strict=True):
        np.testing.assert_array_equal(simulated, deployed)


@pytest.mark.parametrize("qtype", ["float6e2m3", "float6e3m2", "float4e2m1", "float8e4m3fn", "int11"])
def test_every_format_is_simulated(qtype: str) -> None:
    """Target simulation takes what no target takes; the model then holds values of the grid only."""
    staged = stage(gemm(), recipe(qtype, "simulation"))
    proto = InsertFakeQuantize(staged.plan, staged.encodings).run(staged.model).model.proto
    encoding = staged.encodings["w"]
    rounded = fake_quantize(
        constants(gemm())["w"], encoding.scale_array, qtype=qtype, axis=encoding.spec.axis
    )
    np.testing.assert_array_equal(constants(proto)["w/fq"], rounded)
    assert np.isfinite(Session(proto, 1).run(staged.feed)[0]).all()


@pytest.mark.parametrize(("qtype", "opset"), [("float4e2m1", 23), ("float6e2m3", 28), ("float6e3m2", 28)])
def test_formats_that_only_onnx_has(qtype: str, opset: int) -> None:
    """What ONNX has and ONNX Runtime lacks is written all the same, and passes the checker."""
    staged = stage(conv_relu(), recipe(qtype, "simulation"))
    proto = qdq_of(staged)
    onnx.checker.check_model(proto, full_check=True)
    assert default_opset(proto) == opset
    assert constants(proto)["w/q"].dtype == qtype_by_name(qtype).dtype


def test_what_an_old_onnx_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that the installed onnx is too old for is refused in one line."""
    monkeypatch.delitem(qtypes._OPSETS, "float6e2m3")
    with pytest.raises(PlanError) as caught:
        qdq_of(stage(gemm(), recipe("float6e2m3", "simulation")))
    assert str(caught.value) == (
        "tensor 'x': the installed onnx has no float6e2m3; upgrade onnx, or insert fake-quant nodes instead"
    )


def test_quantize_has_nothing_to_hand_over() -> None:
    """Quantize writes Q/DQ; with target simulation it says what to do instead."""
    with pytest.raises(RecipeError) as caught:
        quantize(gemm(), [feed_for(gemm())], recipe=recipe("float6e2m3", "simulation"))
    assert str(caught.value) == (
        "recipe all: quantize writes a model to hand over, and target simulation has none; run the stages and "
        "insert fake-quant nodes, or name another target"
    )


def test_refused_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """When onnx cannot raise the opset to what a format needs, one line says so."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    staged = stage(gemm(), recipe("int2"))
    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
    with pytest.raises(ModelError) as caught:
        qdq_of(staged)
    assert str(caught.value) == (
        "the given model: opset 17 must be raised to 25 and onnx's converter refused (no adapter); export the "
        "model at opset 25 or above"
    )


def test_float8_recipe() -> None:
    """Recipe tensorrt-fp8: float8e4m3fn on both sides, activations per tensor, weights per channel."""
    staged = stage(conv_relu(), "tensorrt-fp8")
    assert {p.tensor: str(p.spec) for p in staged.plan.placements} == {
        "x": "float8e4m3fn symmetric per-tensor",
        "w": "float8e4m3fn symmetric per-axis 0",
    }
    amax = np.abs(feed_for(conv_relu())["x"]).max()
    assert staged.encodings["x"].scale_array == np.float32(np.float64(amax) / 448)
    proto = qdq_of(staged)
    assert default_opset(proto) == 19
    assert constants(proto)["w/q"].dtype == qtype_by_name("float8e4m3fn").dtype


def linear(k: int, n: int) -> onnx.ModelProto:
    """One MatMul of [N, k] with a weight [k, n]."""
    return build(f"g (float[N,{k}] x) => (float[N,{n}] y) {{ [mm] y = MatMul (x, w) }}", {"w": weights(k, n)})


def test_weight_only_recipe() -> None:
    """Recipe tensorrt-int4: the weight alone, int4 in blocks of 128 along the summed axis."""
    staged = stage(linear(256, 6), "tensorrt-int4")
    assert {p.tensor: str(p.spec) for p in staged.plan.placements} == {
        "w": "int4 symmetric blocks of 128 on axis 0"
    }
    assert [str(row) for row in staged.plan.coverage()] == ["MatMul 1/1"]
    why = {s.name: s.why for s in staged.plan.skipped}["x"]
    assert why == "the recipe quantizes the weight only (read by MatMul)"
    proto = qdq_of(staged)
    assert [node.op_type for node in proto.graph.node] == ["DequantizeLinear", "MatMul"]
    assert constants(proto)["w/scale"].shape == (2, 6)
    for _, simulated, deployed in zip(*twins(staged), strict=True):
        np.testing.assert_array_equal(simulated, deployed)


IN_FLOAT = {
    "no multiple": (
        linear(200, 6),
        "TensorRT needs blocks that divide the summed axis: 200 is no multiple of 128",
    ),
    "one block": (
        linear(128, 6),
        "TensorRT has int4 kernels for two blocks and more: the summed axis has 128, one block",
    ),
    "odd": (linear(256, 5), "TensorRT packs two int4 numbers in a byte: the last axis of [256, 5] is odd"),
    "conv": (
        conv_relu(),
        "TensorRT multiplies in float where only the weight of a Conv is quantized",
    ),
}


@pytest.mark.parametrize("case", IN_FLOAT)
def test_weight_only_leaves_in_float(case: str) -> None:
    """A weight that TensorRT would expand, misread or refuse stays in float, with the reason."""
    proto, why = IN_FLOAT[case]
    with pytest.raises(ModelError) as caught:
        planned(proto, "tensorrt-int4")
    assert str(caught.value).endswith(f": {why}")


def test_two_activations_have_no_weight() -> None:
    """A product of two activations is left alone by a weight-only recipe, and the plan says why."""
    base = load_recipe("tensorrt-int4").model_dump()
    small = Recipe.model_validate(base | {"weights": base["weights"] | {"block_size": 2}})
    plan = planned(attention(), small)
    reasons = {s.name: s.why for s in plan.skipped if s.kind == "node"}
    assert reasons == dict.fromkeys(
        ("scores", "mix"), "recipe tensorrt-int4 quantizes weights only, and both inputs are computed"
    )
    assert [str(row) for row in plan.coverage()] == ["MatMul 3/5"]


@pytest.mark.parametrize(("kernel", "float_why"), [(5, ""), (6, "this one has 36")])
def test_large_float8_kernels_stay_in_float(kernel: int, float_why: str) -> None:
    """TensorRT has float8 convolutions of up to 32 elements a window; int8 is not limited."""
    proto = build(
        f"""g (float[N,2,8,8] x) => (float[N,2,a,b] z) {{
            [first] y = Conv (x, w) [last] z = Conv (y, v) }}""",
        {"w": weights(2, 2, kernel, kernel), "v": weights(2, 2, 1, 1)},
    )
    plan = planned(proto, "tensorrt-fp8")
    reasons = [s.why for s in plan.skipped if s.name == "first"]
    assert reasons == (
        [f"TensorRT has float8 kernels up to 32 elements a window, {float_why}"] if float_why else []
    )
    assert str(planned(proto).coverage()[0]) == "Conv 2/2"


def mixed(activations: dict[str, object], scheme: dict[str, object]) -> Recipe:
    """Return a TensorRT recipe of two schemes."""
    return Recipe.model_validate(
        {"name": "r", "target": "tensorrt", "activations": activations, "weights": scheme}
    )


INT8, FP8 = {"qtype": "int8"}, {"qtype": "float8e4m3fn"}
REFUSED = {
    "two types": (
        mixed(INT8, FP8),
        "tensor 'x': TensorRT multiplies two tensors of one type only, not int8 and float8e4m3fn; use one",
    ),
    "uint8": (
        mixed({"qtype": "uint8", "symmetric": False}, INT8),
        "tensor 'x': TensorRT takes zero points of 0 only; use symmetric: true",
    ),
    "e5m2": (
        mixed({"qtype": "float8e5m2"}, {"qtype": "float8e5m2"}),
        "tensor 'x': TensorRT has no float8e5m2 tensors; use float8e4m3fn",
    ),
    "fnuz": (
        mixed({"qtype": "float8e4m3fnuz"}, FP8),
        "tensor 'x': TensorRT has no float8e4m3fnuz tensors; use float8e4m3fn",
    ),
    "int16": (mixed({"qtype": "int16"}, INT8), "tensor 'x': TensorRT has no int16 tensors; use int8"),
    "int9": (
        mixed({"qtype": "int9"}, INT8),
        "tensor 'x': TensorRT has no int16 tensors, which int9 needs; use int8",
    ),
    "int2": (mixed({"qtype": "int2"}, INT8), "tensor 'x': TensorRT has no int2 tensors; use int8"),
    "float4": (
        mixed({"qtype": "float4e2m1"}, FP8),
        "tensor 'x': TensorRT has no float4e2m1 tensors; use float8e4m3fn",
    ),
    "int4 beside int8": (
        mixed(INT8, {"qtype": "int4", "granularity": "blocked", "block_size": 2}),
        "tensor 'w': TensorRT takes int4 only for weights whose activations stay float; use int8",
    ),
    "blocked float8": (
        mixed(FP8, FP8 | {"granularity": "blocked", "block_size": 2}),
        "tensor 'w': TensorRT computes blocked float8e4m3fn weights with quantized activations wrongly; use "
        "per_axis",
    ),
    "blocks of int8 alone": (
        Recipe.model_validate(
            {
                "name": "r",
                "target": "tensorrt",
                "activations": None,
                "weights": INT8 | {"granularity": "blocked", "block_size": 2},
            }
        ),
        "tensor 'w': TensorRT expands blocked int8 weights to float before it multiplies; use per_axis",
    ),
    "N-D blocks": (
        mixed(INT8, INT8 | {"granularity": "block_shape", "block_shape": [2, 2]}),
        "tensor 'w': TensorRT takes blocks along one axis only; use per_axis, or target onnxruntime",
    ),
    **{
        f"{name} on onnxruntime": (
            recipe(name),
            f"tensor 'x': ONNX Runtime has no QuantizeLinear for {name}; use float8e4m3fn, or target simulation",
        )
        for name in ("float4e2m1", "float6e2m3", "float6e3m2")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    """What a target cannot take is refused when planning, with target, rule and remedy in one line."""
    chosen, message = REFUSED[case]
    with pytest.raises(RecipeError) as caught:
        planned(linear(4, 4), chosen)
    assert str(caught.value) == f"node 'mm', {message}"


def test_odd_widths_are_carried_by_int8_on_tensorrt() -> None:
    """int5 on TensorRT is int8 with a Clip in front: a type that it has."""
    proto = qdq_of(stage(linear(4, 4), mixed({"qtype": "int5"}, {"qtype": "int5"})))
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds == ["Clip", "QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert constants(proto)["w/q"].dtype == np.int8


def test_clipped_per_tensor_only() -> None:
    """An edited plan that asks a clipped activation for a scale per index is refused."""
    staged = stage(linear(4, 4), recipe("int5"))
    placement = staged.plan.activations[0]
    spec = placement.spec.model_copy(update={"axis": 1})
    changed = placement.model_copy(update={"spec": spec})
    plan = staged.plan.model_copy(update={"placements": (changed, *staged.plan.weights)})
    many = Encoding.of("x", spec, np.ones(4, np.float32), np.zeros(4, np.int32))
    encodings = Encodings(model_sha256=staged.model.sha256, encodings=(many, staged.encodings["w"]))
    with pytest.raises(PlanError, match="tensor 'x': int5 activations are clipped per tensor, got int5"):
        InsertQdq(plan, encodings).run(staged.model)


def test_weight_only_takes_no_calibrator() -> None:
    """A calibrator for activations that are not there is an error, not a silence."""
    with pytest.raises(RecipeError) as caught:
        load_recipe("tensorrt-int4").with_calibrator("mse")
    assert str(caught.value) == "recipe tensorrt-int4 is weight-only: no activation needs calibrator 'mse'"


@pytest.mark.parametrize("calibrator", ["minmax", "percentile", "entropy", "mse"])
def test_every_calibrator_takes_floats(calibrator: str) -> None:
    """All calibrators give a float8 scale; entropy gives the full range."""
    staged = stage(conv_relu(), "tensorrt-fp8")
    scale = calibrate(staged.model, staged.plan, staged.statistics, calibrator)["x"].scale_array
    full = staged.encodings["x"].scale_array
    assert scale == full if calibrator in ("minmax", "entropy") else 0 < scale <= full

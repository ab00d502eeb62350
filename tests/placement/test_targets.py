"""Acceptance by each target: recipes of formats, nodes left in float, refusals, limits of plans and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from agreement import twins
from builders import (
    attention,
    build,
    constants,
    conv_relu,
    feed_for,
    linear,
    one_format,
    planned,
    qdq_of,
    stage,
    two_branch,
    weights,
)
from engines import build_all, counts, needs_builder

from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.model import default_opset
from onnxfq.graph.names import Use
from onnxfq.graph.ops import is_weighted
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.placement.target_policy import Operands
from onnxfq.targets.reading.context import read
from onnxfq.targets.reading.limits import Product
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import prepare_model


def test_float8_recipe() -> None:
    """Recipe tensorrt-fp8: float8e4m3fn on both sides, activations per tensor, weights per channel."""
    staged = stage(conv_relu(), "tensorrt-fp8")
    assert {p.tensor: str(p.spec) for p in staged.plan.placements} == {
        "x": "float8e4m3fn symmetric per-tensor",
        "w": "float8e4m3fn symmetric per-axis 0",
    }
    amax = np.abs(feed_for(conv_relu())["x"]).max()
    assert staged.encodings["x"].scale == np.float32(np.float64(amax) / 448)
    proto = qdq_of(staged)
    assert default_opset(proto) == 19
    assert constants(proto)["w/q"].dtype == qtype_by_name("float8e4m3fn").dtype


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
    "other size": (
        linear(48, 6),
        "TensorRT needs blocks that divide the summed axis: 48 is not a multiple of 128; block_size 16 would "
        "do",
    ),
    "odd": (linear(256, 5), "TensorRT packs two int4 numbers in a byte: the last axis of [256, 5] is odd"),
    "conv": (conv_relu(), "TensorRT multiplies in float where only the weight of a Conv is quantized"),
}


def test_one_block_is_refused() -> None:
    """A summed axis of one block stays in float; the reason names a size that would do."""
    recipe = load_recipe("tensorrt-int4").override(weights={"other_block_sizes": ()})
    with pytest.raises(ModelError, match="summed axis has 128, one block; block_size 64 would do"):
        planned(linear(128, 6), recipe)


@pytest.mark.parametrize(("size", "block"), [(64, 32), (128, 64), (256, 128), (192, 64)])
def test_first_block_size_that_divides(size: int, block: int) -> None:
    """The first of 128, 64 and 32 that cuts the summed axis into two or more equal blocks is used."""
    (weight,) = planned(linear(size, 6), "tensorrt-int4").weights
    assert weight.spec.granularity.block_size == block


@pytest.mark.parametrize("case", IN_FLOAT)
def test_weight_only_leaves_in_float(case: str) -> None:
    """A weight that TensorRT would expand, misread or refuse stays in float, with the reason."""
    proto, why = IN_FLOAT[case]
    with pytest.raises(ModelError) as caught:
        planned(proto, "tensorrt-int4")
    assert str(caught.value).endswith(f": {why}")


def product(x: str, text: str, *shape: int) -> onnx.ModelProto:
    """One product, written by `text`, of `x`, of shape `x`, and a weight of `shape`."""
    return build(f"g (float[{x}] x) => (float y) {{ [mm] y = {text} }}", {"w": weights(*shape)})


# Pairs that differ in one number: TensorRT keeps one, and multiplies the other in float (or fails).
ALONE = {
    "int8 odd columns": (product("N,64", "MatMul (x, w)", 64, 9), "odd: 9 columns"),
    "int8 odd sum": (product("N,33", "Gemm <transB = 1> (x, w)", 64, 33), "odd: 33 to sum over"),
    "int8 odd sum, left": (product("33,N", "MatMul (w, x)", 64, 33), "odd: 33 to sum over"),
    "int8 stack": (product("N,1,8,32", "MatMul (x, w)", 4, 32, 64), "a stack of matrices"),
    "int8 even": (product("N,64", "MatMul (x, w)", 64, 10), ""),
    "int8 one column": (product("N,33", "MatMul (x, w)", 33, 1), ""),
    "int8 one row": (product("1,33", "MatMul (x, w)", 33, 9), ""),
    "int8 left": (product("32,8", "MatMul (w, x)", 63, 32), ""),
    "int8 own matrix each": (product("4,8,32", "MatMul (x, w)", 4, 32, 64), ""),
    "int4 odd columns": (product("N,64", "Gemm <transB = 1> (x, w)", 3, 64), "odd: 3 columns"),
    "int4 one column": (product("N,64", "Gemm <transB = 1> (x, w)", 1, 64), "odd: 1 columns"),
    "int4 left": (product("32,N", "MatMul (w, x)", 64, 32), "builder aborts"),
    "int4 left Gemm": (product("32,8", "Gemm <transA = 1> (w, x)", 32, 64), "builder aborts"),
    "int4 stack": (product("N,1,8,32", "MatMul (x, w)", 4, 32, 64), "a stack of matrices"),
    "int4 one row": (product("1,64", "Gemm <transB = 1> (x, w)", 9, 64), ""),
    "int4 even": (product("N,64", "Gemm <transB = 1> (x, w)", 6, 64), ""),
    "int4 own matrix each": (product("4,8,32", "MatMul (x, w)", 4, 32, 64), ""),
}


def alone(case: str) -> Recipe:
    """Return the recipe of a case of `ALONE`."""
    small = load_recipe("tensorrt-int4").override(weights={"block_size": 16})
    return small if case.startswith("int4") else load_recipe("tensorrt-int8-weights")


@pytest.mark.parametrize("case", ALONE)
def test_weights_alone_stay_low_or_in_float(case: str) -> None:
    """A product that TensorRT runs in float for its sizes is not promised to have few bits."""
    proto, why = ALONE[case]
    if not why:
        assert [str(row) for row in planned(proto, alone(case)).coverage()] in (["MatMul 1/1"], ["Gemm 1/1"])
        return
    with pytest.raises(ModelError, match=why):
        planned(proto, alone(case))


@needs_builder
def test_the_builder_keeps_weights_alone(tmp_path: Path) -> None:
    """Every weight of few bits that is promised is one of the engine."""
    kept = [case for case, (_, why) in ALONE.items() if not why]
    made = {case: qdq_of(stage(ALONE[case][0], alone(case))) for case in kept}
    for case, reports in build_all(tmp_path, made).items():
        found = counts(made[case], reports)
        assert len(found) == len(reports), case  # all are built
        for row in found.values():
            assert list(row.values()) == [1] and "weight-only as weight-only" in next(iter(row)), (case, row)


def test_two_activations_have_no_weight() -> None:
    """A product of two activations is left alone by a weight-only recipe, and the plan says why."""
    plan = planned(attention(), load_recipe("tensorrt-int4").override(weights={"block_size": 2}))
    reasons = {s.name: s.why for s in plan.skipped if s.kind == "node"}
    assert reasons == dict.fromkeys(
        ("scores", "mix"), "recipe tensorrt-int4 quantizes weights only, and both inputs are computed"
    )
    assert [str(row) for row in plan.coverage()] == ["MatMul 3/5"]


@pytest.mark.parametrize(("kernel", "float_why"), [(5, ""), (6, "this one has 36")])
def test_large_float8_kernels_stay_in_float(kernel: int, float_why: str) -> None:
    """TensorRT has float8 convolutions of up to 32 elements a window; int8 is not limited."""
    proto = build(
        """g (float[N,2,8,8] x) => (float[N,2,a,b] z) {
            [first] y = Conv (x, w) [last] z = Conv (y, v) }""",
        {"w": weights(2, 2, kernel, kernel), "v": weights(2, 2, 1, 1)},
    )
    plan = planned(proto, "tensorrt-fp8")
    reasons = [s.why for s in plan.skipped if s.name == "first"]
    assert reasons == (
        [f"TensorRT has float8 kernels up to 32 elements a window, {float_why}"] if float_why else []
    )
    assert str(planned(proto).coverage()[0]) == "Conv 2/2"


def mixed(activations: dict[str, object] | None, scheme: dict[str, object]) -> Recipe:
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
        "tensor 'w': TensorRT builds no blocked float8e4m3fn weights beside quantized activations; use "
        "per_axis",
    ),
    "blocks of int8 alone": (
        mixed(None, INT8 | {"granularity": "blocked", "block_size": 2}),
        "tensor 'w': TensorRT expands blocked int8 weights to float before it multiplies; use per_axis",
    ),
    "N-D blocks": (
        mixed(INT8, INT8 | {"granularity": "block_shape", "block_shape": [2, 2]}),
        "tensor 'w': TensorRT takes blocks along one axis only; use per_axis, or target onnxruntime",
    ),
    **{
        f"{name} on onnxruntime": (
            one_format(name),
            f"tensor 'x': ONNX Runtime has no QuantizeLinear for {name}; use float8e4m3fn, or target "
            "simulation",
        )
        for name in ("float4e2m1", "float6e2m3", "float6e3m2")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    """Formats that a target lacks are refused when planning, with target, rule and remedy in one line."""
    chosen, message = REFUSED[case]
    with pytest.raises(RecipeError) as caught:
        planned(linear(4, 4), chosen)
    assert str(caught.value) == f"node 'mm', {message}"


OTHERS = [
    ("qnn-int8", {"activations": {"dynamic": True, "qtype": "uint8"}}, "use dynamic: false"),
    ("qnn-int8", {"activations": {"qtype": "int8"}}, "uint8 or uint16, not int8"),
    ("qnn-int8", {"weights": {"qtype": "int16"}}, "symmetric int8 or int4 weights, not int16"),
    ("qnn-int8", {"weights": {"symmetric": False}}, "not int8 with zero points"),
    ("qnn-int8", {"activations": {"granularity": "per_axis"}}, "one scale of an activation"),
    ("qnn-int8", {"weights": {"granularity": "blocked", "block_size": 4}}, "no scales of blocks"),
    ("openvino-int8", {"activations": {"dynamic": True}}, "use dynamic: false"),
    ("openvino-int8", {"activations": {"qtype": "int8"}}, "int8 with a zero point in float; use uint8"),
    ("openvino-int8", {"activations": {"qtype": "uint16"}}, "activations of 8 bits only, not uint16"),
    ("openvino-int8", {"weights": {"qtype": "int4"}}, "symmetric int8 weights only, not int4"),
    ("openvino-int8", {"weights": {"symmetric": False}}, "not int8 with zero points"),
    ("openvino-int8", {"activations": {"granularity": "per_axis"}}, "one scale of an activation"),
    (
        "openvino-int8",
        {"weights": {"granularity": "blocked", "block_size": 4}},
        "scales of blocks; use per_axis",
    ),
    ("genai-int4", {"weights": {"granularity": "per_axis", "block_size": None}}, "blocks of a power of two"),
    ("genai-int4", {"weights": {"block_size": 48}}, "has blocks of a power of two"),
    ("genai-int4", {"weights": {"qtype": "float8e4m3fn"}}, "stores int2, int4, int8 and unsigned ones"),
    ("genai-int4", {"weights": {"qtype": "int6"}}, "stores int2, int4, int8 and unsigned ones"),
    ("genai-int4", {"weights": {"scale_type": "e8m0"}}, "has float scales"),
]
"""A recipe, what is changed in it, and how its target refuses that."""


@pytest.mark.parametrize(("recipe", "changes", "says"), OTHERS)
def test_changed_recipes_are_refused(recipe: str, changes: dict[str, dict[str, object]], says: str) -> None:
    """A format that a target lacks, or multiplies in float, is refused with the remedy."""
    chosen = load_recipe(recipe).override(**changes)
    chosen = chosen.model_copy(update={"activations": None}) if recipe == "genai-int4" else chosen
    with pytest.raises(RecipeError, match=says):
        planned(conv_relu() if "int8 with a zero point" in says else linear(64, 64), chosen)


def test_odd_widths_are_carried_by_int8_on_tensorrt() -> None:
    """int5 on TensorRT is int8 with a Clip in front: a type that it has."""
    proto = qdq_of(stage(linear(4, 4), mixed({"qtype": "int5"}, {"qtype": "int5"})))
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds == ["Clip", "QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert constants(proto)["w/q"].dtype == np.int8


def test_weight_only_takes_no_calibrator() -> None:
    """A calibrator for activations that are not there is an error, not a silence."""
    with pytest.raises(RecipeError) as caught:
        load_recipe("tensorrt-int4").override(activations={"calibrator": "mse"})
    assert str(caught.value) == "recipe tensorrt-int4 is weight-only: no activation needs calibrator 'mse'"


def test_blocks_along_different_axes() -> None:
    """A weight that two products sum over different axes of cannot be blocked: both are named."""
    proto = build(
        """g (float[N,4] x, float[4,M] v) => (float[N,4] y, float[4,M] z) {
            [right] y = MatMul (x, w) [left] z = MatMul (w, v) }""",
        {"w": weights(4, 4)},
    )
    with pytest.raises(RecipeError) as caught:
        planned(proto, one_format("int8", granularity="blocked", block_size=2))
    assert str(caught.value) == (
        "weight 'w' is blocked along different axes for 'right' and 'left'; leave one of them in float by an "
        "override"
    )


ALIKE = ("tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8", "openvino-int8", "qnn-int8")


@pytest.mark.parametrize("recipe", ALIKE)
@pytest.mark.parametrize("make", [conv_relu, attention, two_branch])
def test_plan_and_file_look_alike(recipe: str, make: Callable[[], onnx.ModelProto]) -> None:
    """Each operand of a product has in the file what the planner judged; a zero point may turn out as 0."""
    made = stage(make(), recipe)
    model = prepare_model(made.model, made.plan.target)
    nodes = {node.name: node for node in model.graph().nodes if is_weighted(node)}
    placed = {use: p for p in made.plan.placements for use in p.uses if p.role != "bias"}
    count = 0
    for promised in read(qdq_of(made)).promises:
        node = nodes.get(promised.site.name)
        if node is None:
            continue
        slots = [placed.get(Use(node.name, slot)) for slot in (0, 1)]
        placements = [placement for placement in slots if placement is not None]
        shapes = {t.name: tuple(t.shape) for t in node.inputs if isinstance(t, gs.Constant)}
        for operand, placement in zip(promised.operands, slots, strict=True):
            assert operand.pair is not None and placement is not None
            planned = Product.planned(placement, Operands(node, placements, shapes))
            found = Product.read(promised, operand, operand.pair)
            assert found.zeros in ("none", planned.zeros)
            assert replace(found, zeros=planned.zeros, axis=planned.axis) == planned
            count += 1
    assert count

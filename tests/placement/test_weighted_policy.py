"""Placing inputs of weighted operators and skip branches of sums: which, on which axis, for which reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import (
    BUILDERS,
    attention,
    build,
    build_used,
    conv_relu,
    conv_transpose,
    downsample,
    gemm,
    left_constant,
    planned,
    same_tensor_twice,
    shared_weight,
    tied_embedding,
    transposed_weight,
    two_branch,
    vector_weight,
    weights,
    with_override,
    with_weights,
)

from onnxfq.documents.plan import Plan
from onnxfq.graph.io.load import load
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.targets.recipes import load_recipe


def axes(plan: Plan) -> dict[str, int | None]:
    """Return the axis of each weight."""
    return {p.tensor: p.spec.granularity.axis for p in plan.weights}


AXES = {
    "conv": (conv_relu(), {"w": 0}),
    "gemm": (gemm(), {"w": 1}),
    "gemm_trans_b": (gemm(0, 1), {"w": 0}),
    "gemm_trans_a": (gemm(1, 0), {"w": 1}),
    "gemm_trans_ab": (gemm(1, 1), {"w": 0}),
    "matmul_left": (left_constant(), {"w": 0}),
    "matmul_vector": (vector_weight(), {"w": None}),
    "matmul_transposed": (transposed_weight(), {"w": 0}),
    "tied_embedding": (tied_embedding(), {"table": 0}),
    "shared": (shared_weight(), {"w": 1}),
}


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8"])
@pytest.mark.parametrize("name", AXES)
def test_weights_are_quantized_along_output_channels(name: str, recipe: str) -> None:
    """The axis belongs to the stored constant, whatever stands between it and its reader."""
    proto, expected = AXES[name]
    if (name, recipe) == ("matmul_left", "onnxruntime-int8"):
        expected = {"w": None}  # ONNX Runtime takes uint8 with one scale on the left
    assert axes(planned(proto, recipe)) == expected


@pytest.mark.parametrize(("recipe", "axis"), [("tensorrt-int8", None), ("onnxruntime-int8", 1)])
def test_conv_transpose(recipe: str, axis: int | None) -> None:
    """TensorRT releases disagree on ConvTranspose's axis, so it gets one scale there; the plan says why."""
    (weight,) = planned(conv_transpose(), recipe).weights
    assert weight.spec.granularity.axis == axis
    assert ("disagree on the channel axis" in weight.why) == (axis is None)


def test_conv_transpose_is_left_out(tmp_path: Path) -> None:
    """Targets without a kernel that pays leave it in float and say why; a recipe quantizes it."""
    proto = build(
        "g (float[N,3,4,4] x) => (float[N,2,8,8] y) { [conv] a = Conv (x, v) "
        "[up] y = ConvTranspose <strides = [2,2]> (a, w) }",
        {"v": weights(3, 3, 1, 1), "w": weights(3, 2, 2, 2)},
    )
    path = tmp_path / "mine.yaml"
    path.write_text("conv_transpose: quantize\n", encoding="utf-8")
    for recipe, found in (("tensorrt-int8", 0), ("onnxruntime-int8", 0), (path, 1)):
        plan = planned(proto, load_recipe(recipe))
        assert f"ConvTranspose {found}/1" in map(str, plan.coverage())
        reasons = {s.name: s.rule for s in plan.skipped if s.kind == "node"}
        assert reasons == ({} if found else {"up": "conv-transpose"})


BLOCKS = {
    "matmul": (shared_weight(), 0),
    "gemm": (gemm(), 0),
    "gemm_trans_b": (gemm(0, 1), 1),
    "turned": (transposed_weight(), 1),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run_along_the_sum(name: str) -> None:
    """Blocks divide the axis that is summed over; a Conv, which has several, falls back to channels."""
    proto, axis = BLOCKS[name]
    (weight,) = planned(proto, with_weights("onnxruntime-int8", granularity="blocked", block_size=2)).weights
    assert (weight.spec.granularity.axis, weight.spec.granularity.block_size) == (axis, 2)


def test_blocks_of_a_conv_fall_back_to_channels() -> None:
    """A Conv sums over several axes: its weights get one scale a channel, and the plan says so."""
    (weight,) = planned(
        conv_relu(), with_weights("onnxruntime-int8", granularity="blocked", block_size=2)
    ).weights
    assert (weight.spec.granularity.axis, weight.spec.granularity.block_size) == (0, None)
    assert weight.why == (
        "weight of Conv, per output channel: blocks go along one summed axis, and Conv has none"
    )


def test_per_tensor_weights() -> None:
    """A recipe may ask for one scale a weight."""
    assert axes(planned(conv_relu(), with_weights("tensorrt-int8", granularity="per_tensor"))) == {"w": None}


@pytest.mark.parametrize("name", BUILDERS)
def test_both_sides_or_none(name: str) -> None:
    """Every weighted operator, in bodies too, has all its needs placed, since one float side makes it float.

    No placement is read by a third input, a bias.
    """
    model = load(BUILDERS[name]())
    plan = planned(BUILDERS[name]())
    placed = {use for placement in plan.placements for use in placement.uses}
    assert all(use.input < 2 for use in placed)
    nodes = {n.node: n for n in plan.nodes}
    for node in list_nodes(model.proto.graph):
        if node.op_type in WEIGHTED_INPUTS:
            assert set(nodes[node.name].needs) <= placed


def test_one_tensor_is_placed_once() -> None:
    """A weight of two readers, and a tensor on both inputs of one node, are one placement with two uses."""
    (weight,) = planned(shared_weight()).weights
    assert weight.uses == (("first", 1), ("second", 1))
    (placement,) = planned(same_tensor_twice()).placements
    assert placement.uses == (("mm", 0), ("mm", 1))


def test_weight_shared_along_different_axes() -> None:
    """Readers that want different axes share one scale for the tensor, and the plan says why."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) { h = Gemm (x, w) y = Gemm <transB = 1> (h, w) }",
        {"w": weights(4, 4)},
    )
    (weight,) = planned(proto).weights
    assert weight.spec.granularity.axis is None
    assert "different channel axes" in weight.why


def test_two_activations() -> None:
    """A MatMul of two activations has both placed per tensor."""
    activations = {p.tensor: p for p in planned(attention()).activations}
    assert {"q", "kt", "p", "x", "m"} <= set(activations)
    assert all(p.spec.granularity.axis is None for p in activations.values())


def test_embedding_keeps_its_float_reader() -> None:
    """Only the Transpose of a tied table reads rounded values; the lookup stays exact."""
    (weight,) = planned(tied_embedding()).weights
    assert weight.uses == (("turn", 0),)


TRANSPOSED_TEXT = """g (float[N,4] x) => (float[N,4] y{output}) {{
    [turn] t = Transpose (w) [mm] h = MatMul (x, t) [last] y = {last} }}"""
FLOAT_READERS = {
    "graph output": (TRANSPOSED_TEXT.format(output=", float[4,4] t", last="Relu (h)"), {}),
    "float operator": (TRANSPOSED_TEXT.format(output="", last="Add (h, t)"), {}),
    "operator kept in float": (TRANSPOSED_TEXT.format(output="", last="MatMul (h, t)"), {"nodes": ["last"]}),
}


@pytest.mark.parametrize("case", FLOAT_READERS)
def test_no_float_reader_sees_rounded_weights(case: str) -> None:
    """When something in float reads a Transpose too, its result is quantized for the operator alone."""
    text, override = FLOAT_READERS[case]
    recipe = with_override(**override, keep_float=True) if override else "tensorrt-int8"
    plan = planned(build(text, {"w": weights(4, 4)}, opset=17), recipe)
    assert {(p.tensor, p.role) for p in plan.placements} == {("x", "activation"), ("t", "activation")}
    assert ("mm", 1) in {use for p in plan.placements for use in p.uses}


def test_unknown_types_stay_with_a_reason() -> None:
    """The output of a custom operator has no known type, so its reader stays in float and says so."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y) {
            [first] h = MatMul (x, w) o = mine.Odd (h) [second] y = MatMul (o, w) }""",
        {"w": weights(4, 4)},
        mine=1,
    )
    plan = planned(proto)
    assert [s.why for s in plan.skipped if s.name == "second"] == [
        "input 'o' is of unknown type, and only float32, float16 and bfloat16 are quantized"
    ]
    assert "o" in {s.name for s in plan.skipped}


def test_known_ranges_of_the_recipe() -> None:
    """Outputs of an operator named in known_ranges have its range, and the plan says so; the rest not."""
    plan = planned(attention(), "tensorrt-fp8")
    found = {p.tensor: p for p in plan.activations}
    assert found["p"].calibrator == "known:Softmax"
    assert found["p"].why.startswith("input of MatMul; every output of Softmax lies in [0, 1]")
    assert {p.calibrator for name, p in found.items() if name != "p"} == {"minmax"}
    other = {p.calibrator for p in planned(attention(), "tensorrt-int8").activations}
    assert other == {"best_error"}


def test_an_operator_of_another_domain_has_no_known_range() -> None:
    """A Softmax that is not ONNX's may give anything."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) { s = local.Softmax (x) y = MatMul (s, w) }",
        {"w": weights(4, 4)},
        local=1,
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, ["N", 4]))
    assert [p.calibrator for p in planned(proto, "tensorrt-fp8").activations] == ["minmax"]


def skips(plan: Plan) -> list[tuple[str, str, int]]:
    """Return (tensor, Add, slot) of every placed skip branch."""
    adds = {n.node for n in plan.nodes if n.op_type == "Add (residual)"}
    return [(p.tensor, use.node, use.input) for p in plan.placements for use in p.uses if use.node in adds]


def block(main: str, skip: str = "", order: str = "c, {0}", tail: str = "y = Conv (s, w2)") -> Plan:
    """Plan a sum of `main`, which gives c from h, and of h or what `skip` makes of it."""
    text = f"""g (float[N,4,5,5] x) => (float[N,4,H,W] y) {{
        h = Relu (x) {main} {skip} [add] s = Add ({order.format("k" if skip else "h")}) {tail} }}"""
    values = {"w": weights(4, 4, 1, 1), "w2": weights(4, 4, 1, 1, seed=2), "k5": weights(5)}
    values |= {"k4": weights(4), "k1": weights(1, 4, 1, 1), "var": np.ones(4, np.float32)}
    return planned(build_used(text, values))


@pytest.mark.parametrize("order", ["c, {0}", "{0}, c"], ids=["conv-first", "skip-first"])
def test_identity_skip(order: str) -> None:
    """The input that does not end in a Conv is the skip branch, on either side of the Add."""
    assert skips(block("c = Conv (h, w)", order=order)) == [("h", "add", 1 if order.startswith("c") else 0)]


@pytest.mark.parametrize(
    "main",
    [
        "a = Conv (h, w) c = Mul (a, k1)",
        "a = Conv (h, w) c = Identity (a)",
        "a = Conv (h, w) c = BatchNormalization (a, k4, k4, k4, var)",
    ],
    ids=["scale", "identity", "batch-norm"],
)
def test_folded_operators_between(main: str) -> None:
    """Nodes folded into the Conv, its BatchNormalization or a scale, do not hide it."""
    assert skips(block(main)) == [("h", "add", 1)]


def test_block_with_batch_norm() -> None:
    """The builder's block: pair on the skip, none on the branch that ends in the Conv."""
    plan = planned(two_branch())
    assert skips(plan) == [("h", "add", 1)]
    assert [str(row) for row in plan.coverage()] == ["Conv 3/3", "Add (residual) 1/1"]


def test_downsample_skip() -> None:
    """If two branches end in a Conv, the shorter one is the skip."""
    assert skips(planned(downsample())) == [("down", "add", 1)]


NO_SKIP = {
    "an activation behind the Conv does not fuse": {"main": "a = Conv (h, w) c = Relu (a)"},
    "another reader of the Conv prevents fusing": {"tail": "s2 = Add (s, c) y = Conv (s2, w2)"},
    "a gate [N,4,1,1] is stretched": {"skip": "k = GlobalAveragePool (h)"},
    "a vector is stretched": {"skip": "k = ReduceMean <axes = [1,2,3], keepdims = 0> (h) "},
    "a constant is a bias": {"order": "c, k5"},
    "a sum of one tensor with itself has one branch": {"order": "c, c"},
}


@pytest.mark.parametrize("why", NO_SKIP)
def test_sums_without_a_skip(why: str) -> None:
    """No operand of these sums gets a pair for being a skip branch."""
    assert skips(block(**{"main": "c = Conv (h, w)"} | NO_SKIP[why])) == []


def test_transformer_residual_gets_no_pair() -> None:
    """A sum of a MatMul that no quantized operator reads stays in float, with the reason, uncounted."""
    plan = planned(attention())
    assert skips(plan) == []
    assert [s.why for s in plan.skipped if s.name == "add"] == [
        "skip branch of a sum that no quantized operator reads: a pair would only add noise"
    ]
    assert all(row.op_type == "MatMul" and row.quantized == row.total for row in plan.coverage())


@pytest.mark.parametrize("override", [{"nodes": ["add"]}, {"op_types": ["Add"]}], ids=["node", "op-type"])
def test_residuals_follow_overrides(override: dict[str, list[str]]) -> None:
    """keep_float on the Add leaves the skip branch in float, counted and with the reason."""
    plan = planned(two_branch(), with_override(**override, keep_float=True))
    assert skips(plan) == []
    assert [str(row) for row in plan.coverage()] == ["Conv 3/3", "Add (residual) 0/1"]
    assert "kept in float by an override" in next(s.why for s in plan.skipped if s.name == "add")


def test_nothing_to_fuse_into() -> None:
    """Where the Conv of the branch stays in float, and for ONNX Runtime, no skip branch is placed."""
    for recipe in (with_override(nodes=["conv2"], keep_float=True), "onnxruntime-int8"):
        assert skips(planned(two_branch(), recipe)) == []

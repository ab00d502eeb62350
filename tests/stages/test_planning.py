"""`make_plan`: everything has a decision and a reason, overrides bite, impossible wishes are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import (
    BUILDERS,
    build,
    conv_relu,
    planned,
    stage,
    transposed_weight,
    two_branch,
    weights,
    whole_recipe,
    with_override,
    with_weights,
)

from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.io.load import load
from onnxfq.graph.queries import collect_tensors
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.plan import make_plan
from onnxfq.targets.target import prepare_model


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8"])
@pytest.mark.parametrize("name", BUILDERS)
def test_every_float_tensor_is_placed_or_has_a_reason(name: str, recipe: str) -> None:
    """Nothing is silent: each float tensor, of bodies too, is in the plan, once."""
    model = load(BUILDERS[name]())
    plan = make_plan(model, whole_recipe(recipe))
    graph = prepare_model(model, plan.target).graph()
    floats = {
        name
        for name, t in collect_tensors(graph).items()
        if t.dtype is not None and np.dtype(t.dtype).kind == "f"
    }
    placed = [p.tensor for p in plan.placements]
    reasons = [s.name for s in plan.skipped if s.kind == "tensor"]
    assert sorted(placed + reasons) == sorted(floats)
    assert all(s.why for s in plan.skipped) and all(p.why for p in plan.placements)


KEEP = {
    "node": {"nodes": ["conv1"]},
    "glob": {"nodes": ["*1"]},
    "activation": {"tensors": ["h"], "float": {"conv1"}},
    "weight": {"tensors": ["w1"]},
    "weight glob": {"tensors": ["w[1]"]},
    "op type": {"op_types": ["Conv"], "float": {"conv1", "conv2", "conv3"}},
}


@pytest.mark.parametrize("case", [case for case in KEEP if case != "op type"])
def test_keep_float(case: str) -> None:
    """An override by node, glob, or by either tensor leaves the whole node in float and says who asked."""
    fields = {key: value for key, value in KEEP[case].items() if key != "float"}
    plan = planned(two_branch(), with_override(**fields, keep_float=True))
    nodes = {s.name for s in plan.skipped if s.kind == "node" and s.op_type == "Conv"}
    assert nodes == {"conv1"}
    placed = {use.node for p in plan.placements for use in p.uses}
    assert "conv1" not in placed and {"conv2", "conv3"} <= placed
    assert "w1" not in {p.tensor for p in plan.placements}
    reasons = {s.name: s.why for s in plan.skipped}
    assert reasons["conv1"] == "kept in float by an override of recipe tensorrt-int8"
    assert "read by Conv 'conv1', which stays in float" in reasons["w1"]


def test_keep_float_of_everything() -> None:
    """When nothing is left to quantize, that is an error with the reason of the first node."""
    with pytest.raises(ModelError, match="nothing to quantize: 3 Conv, first 'conv1': kept in float by an"):
        planned(two_branch(), with_override(op_types=["Conv"], keep_float=True))


@pytest.mark.parametrize("name", ["w", "t"])
def test_keep_float_of_a_transposed_weight(name: str) -> None:
    """A transposed weight may be named before or after its Transpose."""
    with pytest.raises(ModelError, match="kept in float by an override"):
        planned(transposed_weight(), with_override(tensors=[name], keep_float=True))


UNKNOWN = {
    "node": ({"nodes": ["conv9"]}, "override names node 'conv9', which the model lacks; nearest: conv"),
    "tensor": ({"tensors": ["w9*"]}, "override names tensor 'w9*', which the model lacks"),
    "op type": (
        {"op_types": ["Conf"]},
        "override names op type 'Conf', which the model lacks; nearest: Conv",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_overrides_that_match_nothing(case: str) -> None:
    """A misspelled override is an error with the nearest names, not a silence."""
    fields, message = UNKNOWN[case]
    with pytest.raises(RecipeError) as caught:
        planned(conv_relu(), with_override(**fields, keep_float=True))
    assert message in str(caught.value)


def test_overrides_change_schemes() -> None:
    """Fields of an override replace the recipe's for matches only; later ones win."""
    plan = planned(two_branch(), with_override(nodes=["conv1"], weights={"granularity": "per_tensor"}))
    assert {p.tensor: p.spec.granularity.axis for p in plan.weights} == {"w1": None, "w2": 0, "w3": 0}


def test_disagreeing_overrides_are_told() -> None:
    """One tensor cannot be quantized in two ways: both readers are named."""
    text = "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { [a] y = MatMul (x, w) [b] z = MatMul (x, v) }"
    proto = build(text, {"w": weights(4, 4), "v": weights(4, 4, seed=1)})
    with pytest.raises(
        RecipeError, match=r"tensor 'x' .* for 'a' and .* for 'b'; override it by tensor name"
    ):
        planned(proto, with_override("onnxruntime-int8", nodes=["b"], activations={"qtype": "int8"}))


REFUSED = {
    "int4": (
        {"qtype": "int4"},
        "TensorRT takes int4 only for weights whose activations stay float; use int8",
    ),
    "int16": ({"qtype": "int16"}, "TensorRT has no int16 tensors; use int8"),
    "asymmetric": ({"symmetric": False}, "use symmetric: true"),
    "blocked": ({"granularity": "blocked", "block_size": 2}, "use per_axis"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tensorrt_refuses_what_it_cannot_take(case: str) -> None:
    """A recipe that TensorRT's parser would refuse or compute wrongly is refused here, with the remedy."""
    changes, remedy = REFUSED[case]
    proto = build("g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": weights(4, 4)})
    with pytest.raises(RecipeError, match="tensor 'w'") as caught:
        planned(proto, with_weights("tensorrt-int8", **changes))
    assert remedy in str(caught.value)


@pytest.mark.parametrize("insert", [insert_qdq, insert_fake_quantize], ids=["qdq", "fakequant"])
def test_quantized_models_are_refused(insert) -> None:
    """A model that holds quantizers is not quantized again."""
    staged = stage(conv_relu())
    with pytest.raises(ModelError, match=r"is already quantized \(it has .*\); give the float model"):
        planned(insert(staged.model, staged.plan, staged.encodings))


def test_operators_of_other_domains_are_not_weighted() -> None:
    """A custom operator called Conv is none of ours."""
    with pytest.raises(ModelError, match="nothing to quantize"):
        planned(
            build("g (float[N,4] x) => (float[N,4] y) { y = mine.Conv (x, w) }", {"w": weights(4, 4)}, mine=1)
        )


def test_recurrent_operators_are_counted_and_have_a_reason() -> None:
    """An LSTM stays in float: the coverage says so, and the plan says why."""
    proto = build(
        """g (float[3,2,4] x) => (float[3,2,5] z) {
            y, last, cell = LSTM <hidden_size = 5> (x, w, r)
            flat = Squeeze (y, axes) z = MatMul (flat, v) }""",
        {"w": weights(1, 20, 4), "r": weights(1, 20, 5), "v": weights(5, 5), "axes": np.asarray([1])},
    )
    plan = planned(proto)
    assert [str(row) for row in plan.coverage()] == ["LSTM 0/1", "MatMul 1/1"]
    assert [s.why for s in plan.skipped if s.kind == "node"] == [
        "recurrent: the products of its loop have no inputs of their own to put a pair on"
    ]


@pytest.mark.parametrize(("equation", "inputs"), [("ij,jk,kl->il", "x, w, w"), ("ij,ij->ij", "x, w")])
def test_an_einsum_that_is_no_product_of_two_is_told(equation: str, inputs: str) -> None:
    """It is counted as left in float with its reason, and is not a "no Einsum" in the message."""
    einsum = f'e = Einsum <equation = "{equation}"> ({inputs})'
    text = f"g (float[4,4] x) => (float[M,K] y) {{ {einsum} y = MatMul (e, w) }}"
    plan = planned(build(text, {"w": weights(4, 4)}))
    assert {str(row) for row in plan.coverage()} == {"Einsum 0/1", "MatMul 1/1"}
    alone = build(text.replace("y = MatMul (e, w)", "y = Relu (e)"), {"w": weights(4, 4)})
    with pytest.raises(ModelError, match=f"Einsum 'e' stays in float, '{equation}' is not a product"):
        planned(alone)


@pytest.mark.parametrize("change", [{"activations": {"qtype": "int8"}}, {"weights": {"calibrator": "mse"}}])
def test_a_format_for_what_is_not_quantized(change: dict[str, Any]) -> None:
    """An override that can act on nothing is an error that names what it could act on."""
    recipe = with_override(op_types=["Relu"], **change)
    with pytest.raises(RecipeError, match="override of Relu sets a format but matches no .* of Add, Conv"):
        planned(two_branch(), recipe)
    planned(two_branch(), with_override(op_types=["Relu"], keep_float=True))


def test_a_refusal_names_what_most_operators_have() -> None:
    """Two MatMul of text say more about a model than its one odd Conv."""
    model = build(
        """g (float[1,3,8,8] x, float[4,4] a) => (float[1,2,8,8] y, float[4,4] z) {
            [odd] y = Conv (x, w) [m1] b = MatMul (a, a) [m2] z = MatMul (b, a) }""",
        {"w": weights(2, 3, 1, 1)},
    )
    with pytest.raises(ModelError, match=r"2 MatMul, first 'm1': .*\(3 operators; also 1 Conv"):
        planned(model, with_override(op_types=["Conv", "MatMul"], keep_float=True))

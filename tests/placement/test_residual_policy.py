"""The skip branch of a residual Add: which input gets a pair, and when none does."""

from __future__ import annotations

import numpy as np
import pytest
from builders import attention, build_used, downsample, planned, two_branch, weights, with_override

from onnxfq.documents.plan import Plan

SKIP = "skip branch of a residual Add"


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

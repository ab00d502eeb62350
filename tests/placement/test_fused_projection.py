"""Products split into queries, keys and values: one pair behind them, all of it low in TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, build_used, feed_for, planned, qdq_of, stage, weights, with_override
from engines import count_all, needs_builder, unmeasured
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.passes.insert_fake_quantize import with_fake_quantize
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.runtime.session import Session
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.check import check
from onnxfq.tools.convert import convert

# From `f` to three parts of [N, heads, tokens, size], as exporters write it.
_FOUR = "2 = Reshape ({0}1, four) {0}3 = Transpose <perm = [0,2,1,3]> ({0}2) "
_HEADS = "".join(f"{n}{_FOUR.format(n)}" for n in "qkv")
_STACKED = "r = Reshape (f, five) t = Transpose <perm = [2,0,3,1,4]> (r) "
SPLIT = {
    "Split": f"q1, k1, v1 = Split <axis = 2, num_outputs = 3> (f) {_HEADS}",
    "Slice": "".join(f"{n}1 = Slice (f, i{i}, i{i + 1}, axis) " for i, n in enumerate("qkv")) + _HEADS,
    "Gather": _STACKED + "".join(f"{n}3 = Gather <axis = 0> (t, n{i}) " for i, n in enumerate("qkv")),
    "Split and Squeeze": _STACKED
    + "q2, k2, v2 = Split <axis = 0, num_outputs = 3> (t) "
    + "".join(f"{n}3 = Squeeze ({n}2, i0) " for n in "qkv"),
}
# Place of the factor of the scores; Shape gives it as torch's exporter of TorchScript does.
SCALED = {
    "queries": "qs = Mul (q3, factor) [scores] s = MatMul (qs, kt) ",
    "both": "qs = Mul (q3, root) ks = Mul (kt, root) [scores] s = MatMul (qs, ks) ",
    "divided": "qs = Div (q3, whole) [scores] s = MatMul (qs, kt) ",
    "windows": "qs = Mul (q3, factor) [scores] s0 = MatMul (qs, kt) s1 = Reshape (s0, windows) "
    "s2 = Add (s1, mask) s = Reshape (s2, apart) ",
    "scores": "[scores] s0 = MatMul (q3, kt) s = Mul (s0, factor) ",
    "Shape": "sh = Shape (q3) sz = Slice (sh, d3, d4) sf = Cast <to = 1> (sz) sr = Sqrt (sf) "
    "si = Div (unit, sr) qs = Mul (q3, si) [scores] s = MatMul (qs, kt) ",
}
_LINEAR = {
    "bias": "f0 = MatMul (h, w) f = Add (f0, b) ",
    "none": "f = MatMul (h, w) ",
    "Gemm": "h2 = Reshape (h, rows) f0 = Gemm (h2, w, b) f = Reshape (f0, again) ",
}


def attend(
    split: str = "Gather",
    scaled: str = "queries",
    linear: str = "bias",
    shape: tuple[int | str, int, int, int] = ("N", 64, 4, 32),
    between: str = "",
) -> onnx.ModelProto:
    """One encoder half; shape: batch, tokens, heads, size. between: what makes `q4`, the queries, of `q3`."""
    batch, tokens, heads, size = shape
    width = heads * size
    scores = SCALED[scaled].replace("q3", "q4") if between else SCALED[scaled]
    text = (
        f"h = LayerNormalization (x, gain) [qkv] {_LINEAR[linear]} {SPLIT[split]} {between} "
        f"kt = Transpose <perm = [0,1,3,2]> (k3) {scores} p = Softmax <axis = -1> (s) "
        "[mix] m = MatMul (p, v3) mt = Transpose <perm = [0,2,1,3]> (m) j = Reshape (mt, joined) "
        "[out] o = MatMul (j, wo) y = Add (o, x)"
    )
    constants: Arrays = {
        "gain": np.ones(width, np.float32),
        "w": weights(width, 3 * width) * np.float32(0.1),
        "b": weights(3 * width),
        "wo": weights(width, width, seed=1) * np.float32(0.1),
        "five": np.asarray([0, tokens, 3, heads, size], np.int64),
        "four": np.asarray([0, tokens, heads, size], np.int64),
        "joined": np.asarray([0, tokens, width], np.int64),
        "rows": np.asarray([-1, width], np.int64),
        "again": np.asarray([-1, tokens, 3 * width], np.int64),
        "axis": np.asarray([2], np.int64),
        **{f"n{i}": np.asarray(i, np.int64) for i in range(3)},
        **{f"i{i}": np.asarray([i if split != "Slice" else i * width], np.int64) for i in range(4)},
        **{f"d{i}": np.asarray([i], np.int64) for i in (3, 4)},
        "windows": np.asarray([-1, 2, heads, tokens, tokens], np.int64),
        "apart": np.asarray([-1, heads, tokens, tokens], np.int64),
        "mask": weights(1, 2, 1, tokens, tokens),
        "factor": np.float32(size**-0.5),
        "root": np.float32(size**-0.25),
        "whole": np.float32(size**0.5),
        "unit": np.float32(1),
        "by_channel": weights(1, 1, 1, size),
        "half": np.float32(-0.5),
    }
    kind = f"float[{batch},{tokens},{width}]"
    return build_used(f"g ({kind} x) => ({kind} y) {{ {text} }}", constants, opset=18)


def activations(plan: Plan) -> list[str]:
    """Return the names of the activations with a pair."""
    return sorted(placement.tensor for placement in plan.activations)


JOINED = ["f", "h", "j", "p"]
APART = ["h", "j", "kt", "p", "qs", "v3"]


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "tensorrt-fp8"])
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("split", SPLIT)
def test_one_pair(split: str, scaled: str, recipe: str) -> None:
    """However the split is written, one pair stands behind product and bias, and every product counts."""
    plan = planned(attend(split, scaled), load_recipe(recipe).override(small_shapes="quantize"))
    assert activations(plan) == JOINED
    assert [str(row) for row in plan.coverage()] == ["MatMul 4/4"]
    (whole,) = [p for p in plan.placements if p.tensor == "f"]
    assert "output of MatMul 'qkv', whose parts attention reads" in whole.why
    told = {s.name: s.why for s in plan.skipped}
    assert told["v3"] == told["kt"] == "moved, or a part, of the quantized 'f'"


FLOAT8 = load_recipe("tensorrt-fp8").override(small_shapes="quantize")
CASES: dict[str, tuple[onnx.ModelProto, str | Recipe]] = {
    **{split: (attend(split), "tensorrt-int8") for split in SPLIT},
    **{scaled: (attend("Split", scaled, shape=(4, 49, 4, 32)), "tensorrt-int8") for scaled in SCALED},
    "float8": (attend("Slice", "both"), FLOAT8),
    "Gemm": (attend("Gather", linear="Gemm"), "tensorrt-int8"),
    "no bias": (attend("Split", linear="none"), "tensorrt-int8"),
    "one sample": (attend(shape=(1, 49, 4, 32)), "tensorrt-int8"),
    "ViT": (attend("Split and Squeeze", "both", shape=("N", 197, 12, 64)), "tensorrt-int8"),
}


@needs_builder
@pytest.mark.share(2)
@pytest.mark.parametrize("floats", ["fp16", "fp32"])
def test_all_of_it_is_low(floats, tmp_path: Path) -> None:
    """The builder runs all four products in low precision, two of them in one kernel; check is content."""
    made = {name: unmeasured(proto, recipe, floats) for name, (proto, recipe) in CASES.items()}
    for name, rows in count_all(tmp_path, made).items():
        for row in rows.values():
            linear = "Gemm low as low" if name == "Gemm" else "MatMul low as low"
            assert row.pop("attention in one kernel") == 1, name
            assert sum(row.values()) == 4 and set(row) == {linear, "MatMul low as low"}, (name, row)
        assert not check(made[name]).findings, name


@needs_builder
def test_why_it_is_so(tmp_path: Path) -> None:
    """With a pair for each part the builder makes the weight of the product float, and check warns of it.

    That product is written as one for each part, of which all are low.
    """
    kept = with_override(tensors=["f"], keep_float=True)
    proto = attend()
    assert activations(planned(proto, kept)) == APART
    staged = stage(proto, kept)
    whole = with_qdq(staged.model, staged.plan, staged.encodings).proto
    assert [(f.rule, f.severity, f.node) for f in check(whole).findings] == [
        ("attention-parts", "warning", "qkv")
    ]
    made = {"whole": whole, "divided": qdq_of(staged)}
    assert check(made["divided"]).findings == ()
    low = {"whole": {"MatMul low as low": 3, "MatMul mixed as low": 1}, "divided": {"MatMul low as low": 6}}
    for name, rows in count_all(tmp_path, made).items():
        assert all(row == {**low[name], "attention in one kernel": 1} for row in rows.values())


def outputs_too(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Make an inner tensor an output."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    proto.graph.output.extend(value for value in inferred.graph.value_info if value.name == name)
    return proto


# Another reader of the parts than attention, or arithmetic on one of them: then one pair would round what
# must not be rounded, and without the arithmetic the builder keeps the product low anyway.
NOT_JOINED = {
    "the product is an output": lambda: outputs_too(attend(), "f"),
    "a part is an output": lambda: outputs_too(attend(), "v3"),
    "a factor for each channel": lambda: attend(between="q4 = Mul (q3, by_channel)"),
    "a factor that TensorRT does not fold": lambda: attend(
        between="sh = Shape (q3) sz = Gather <axis = 0> (sh, n2) sf = Cast <to = 1> (sz) sp = Pow (sf, half) "
        "q4 = Mul (q3, sp)"
    ),
    "a norm of the queries": lambda: attend(between="q4 = LpNormalization <axis = -1> (q3)"),
}


@pytest.mark.parametrize("case", NOT_JOINED)
def test_other_readers_keep_the_pairs_apart(case: str) -> None:
    """A tensor with other readers than attention is not rounded for its sake."""
    assert activations(planned(NOT_JOINED[case]())) == APART


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ({"tensors": ["f"], "keep_float": True}, APART),
        ({"tensors": ["v3"], "activations": {"calibrator": "entropy"}}, APART),
        ({"nodes": ["mix"], "activations": {"calibrator": "entropy"}}, APART),
        ({"op_types": ["MatMul"], "activations": {"calibrator": "entropy"}}, JOINED),
        ({"tensors": ["f"], "activations": {"calibrator": "entropy"}}, JOINED),
        ({"nodes": ["qkv"], "keep_float": True}, ["j", "kt", "p", "qs", "v3"]),
        ({"nodes": ["scores"], "keep_float": True}, ["h", "j"]),
    ],
)
def test_overrides(override, found) -> None:
    """An override of the product's output has its way, and one of a part keeps the pairs of all parts."""
    plan = planned(attend(), with_override(**override))
    assert activations(plan) == found
    if found == JOINED:
        assert [p.calibrator for p in plan.placements if p.tensor == "f"] == ["entropy"]


@pytest.mark.sample
def test_other_targets_keep_their_pairs() -> None:
    """ONNX Runtime fuses nothing here; recipes that quantize weights only place no activation."""
    assert activations(planned(attend(), "onnxruntime-int8")) == APART
    assert activations(planned(attend(), "tensorrt-int8-weights")) == []


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(SPLIT)), st.sampled_from(sorted(SCALED)), st.integers(0, 9))
def test_simulation_and_deployed_model_are_twins(split: str, scaled: str, seed: int) -> None:
    """Both models give the same numbers, to the bit."""
    staged = stage(attend(split, scaled, shape=(2, 9, 2, 16)))
    simulation = with_fake_quantize(staged.model, staged.plan, staged.encodings).proto
    feed = feed_for(staged.model.proto, seed)
    one, other = (Session(proto, 1, exact=True).run(feed, ["y"])[0] for proto in (simulation, qdq_of(staged)))
    np.testing.assert_array_equal(one, other)


def test_converted_models_keep_what_they_have() -> None:
    """A tensor with a range in the source keeps its pair: the parts in one source, the whole in another."""
    for recipe, found in ((with_override(tensors=["f"], keep_float=True), APART), ("tensorrt-int8", JOINED)):
        source = qdq_of(stage(attend(shape=(2, 9, 2, 16)), recipe))
        pairs = {node.input[0] for node in convert(source).qdq.graph.node if node.op_type == "QuantizeLinear"}
        assert sorted(pairs) == found

"""Each rewrite for TensorRT is still needed: without it the real builder refuses or loses the kernel.

A failing test here means that a rewrite can go. `SUNSETS` names the test of each, here or among the planted
cases.
"""

from __future__ import annotations

import ast
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, stage, weights
from engines import build_all, count_all, needs_builder, unmeasured
from planted import CASES

import onnxfq
from onnxfq.errors import OnnxfqError
from onnxfq.graph.normalize.write_out_functions import WRITTEN_OUT
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.placement import float_casts
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import with_target_qdq
from onnxfq.targets import tensorrt
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.rewrites import split_projections
from onnxfq.targets.tensorrt.rewrites.block_formats import block_writer

MEASURED = "1.7.1"
"""Release of TensorRT for RTX that every rewrite was measured with."""

BARE = QdqForm(block_writer)
"""TensorRT's operators without edits of the graph or functions."""

REWRITES = Path(tensorrt.__file__).parent / "rewrites"
SUNSETS = {
    "block_writer": "e8m0 scales",
    "count_padding": "test_pools_without_padding_run_in_float",
    "divide_products": "test_whole_projections_lose_their_weight",
    "give_axes_back": "float4 of four axes",
    "insert_block_format": "e8m0 scales",
    "make_rows": "float4 of four axes",
    "match_packed": "test_packed_projections_lose_their_weight",
    "move_guards": "test_guards_prevent_fusion",
    "multiplies_rows": "float4 of four axes",
    "part_results": "test_a_loop_carries_no_product_in_low_precision",
    "separate_constants": "constant of both branches",
    "with_mxfp8_functions": "test_onnxruntime_lacks_the_operators",
    # Elsewhere: loading, the plan, casts.
    "lower_labels": "upper-case labels beside a Conv",
    "name_nodes": "two nodes of one name",
    "write_out_attention": "Attention operator",
    "write_out_functions": "test_operators_that_are_written_out",
    "write_products": "test_attention_of_einsums_is_not_fused",
    "join_pairs": "a pair for each part",
    "decide_attentions": "test_a_factor_behind_attention_prevents_fusion",
    "_wants_no_cast": "Cast in front of an LSTM",
    "_keeps_float32": "ConvTranspose in bfloat16",
    "_keep_whole_products": "test_scales_of_two_types_are_refused",
}
"""Function that rewrites -> a test of this file, or a planted case that the builder refuses or floats."""


@needs_builder
def test_the_release_is_the_measured_one() -> None:
    """With another release all tests of this file are due: each that fails names a rewrite that can go."""
    assert version("tensorrt_rtx").startswith(MEASURED), "run this file, drop what fails, and set MEASURED"


@pytest.mark.sample
def test_every_rewrite_has_one() -> None:
    """Each public function of the rewrites has a sunset test, and each name stands for one."""
    functions = {
        node.name
        for path in REWRITES.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert len(functions) > 8 and not functions - SUNSETS.keys()
    lost = {case.name for case in CASES if case.real not in ("", "low", "weight-only")}
    assert not {test for test in SUNSETS.values() if test not in lost and test not in globals()}


@needs_builder
def test_pools_without_padding_run_in_float(tmp_path: Path) -> None:
    """`count_padding`: an AveragePool without padding runs in int8 with count_include_pad alone."""
    proto = build(
        """g (float[1,32,16,16] x) => (float[] y) {
        [c0] a0 = Conv <pads = [1,1,1,1]> (x, w) [r0] a = Relu (a0)
        [pool] b = AveragePool <kernel_shape = [2,2], strides = [2,2]> (a) [c1] y = Conv (b, k) }""",
        {"w": weights(32, 32, 3, 3), "k": weights(32, 32, 1, 1)},
    )
    rewritten, plain = (unmeasured(proto, load_recipe("tensorrt-int8"), "fp16") for _ in range(2))
    (node,) = (node for node in plain.graph.node if node.op_type == "AveragePool")
    (attribute,) = (one for one in node.attribute if one.name == "count_include_pad")
    attribute.i = 0
    is_low = {}
    for name, reports in build_all(tmp_path, {"plain": plain, "rewritten": rewritten}).items():
        (pool,) = (layer for layer in parse_layers(reports["SM89"].layers) if "pool" in layer.nodes)
        is_low[name] = pool.inputs[0].is_low
    assert is_low == {"plain": False, "rewritten": True}


def attention(guarded: bool) -> onnx.ModelProto:
    """Attention of 128 tokens and 4 heads of 64 behind a split projection, with masked rows or not."""
    soft = "[soft] p = Softmax <axis = -1> (s) [mix] m = MatMul (p, v2)"
    if guarded:
        soft = """bias = Where (look, zero, never) masked = Add (s, bias)
            [soft] p = Softmax <axis = -1> (masked) nan = IsNaN (p)
            seen = Where (nan, zero, p) [mix] m = MatMul (seen, v2)"""
    look = ", bool[2,1,1,128] look" if guarded else ""
    limits = {"zero": np.float32(0), "never": np.float32(-np.inf)} if guarded else {}
    return build(
        f"""g (float[2,128,256] x{look}) => (float[2,128,256] y) {{
        [qkv] f = MatMul (x, w) q, k, v = Split <axis = -1> (f, sizes)
        q1 = Reshape (q, heads) k1 = Reshape (k, heads) v1 = Reshape (v, heads)
        q2 = Transpose <perm = [0,2,1,3]> (q1) k2 = Transpose <perm = [0,2,3,1]> (k1)
        v2 = Transpose <perm = [0,2,1,3]> (v1) [scores] s = MatMul (q2, k2) {soft}
        t = Transpose <perm = [0,2,1,3]> (m) j = Reshape (t, joined) [out] y = MatMul (j, wo) }}""",
        {
            "w": weights(256, 768),
            "wo": weights(256, 256),
            "sizes": np.asarray([256] * 3, np.int64),
            "heads": np.asarray([2, 128, 4, 64], np.int64),
            "joined": np.asarray([2, 128, 256], np.int64),
            **limits,
        },
        opset=18,
    )


@needs_builder
def test_guards_prevent_fusion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`move_guards`: an attention with a guard between its products is no single kernel."""
    rewritten = unmeasured(attention(guarded=True), "tensorrt-fp8", "fp16")
    monkeypatch.setattr(tensorrt, "move_guards", lambda proto: "")
    models = {"plain": unmeasured(attention(guarded=True), "tensorrt-fp8", "fp16"), "rewritten": rewritten}
    fused = {name: rows["SM89"] for name, rows in count_all(tmp_path, models).items()}
    assert "attention in one kernel" not in fused["plain"]
    assert fused["rewritten"]["attention in one kernel"] == 1


@needs_builder
def test_attention_of_einsums_is_not_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`write_products`: an attention of Einsums and 16 keys keeps its pairs, and has several kernels."""
    proto = build(
        """g (float[2,16,64] x) => (float[2,16,64] y) { n = LayerNormalization (x, s, s)
        [q] a = Einsum <equation = "btw,whd->bthd"> (n, wq)
        [k] b = Einsum <equation = "btw,whd->bthd"> (n, wk)
        [v] c = Einsum <equation = "btw,whd->bthd"> (n, wv)
        [scores] d = Einsum <equation = "bqhd,bkhd->bhqk"> (a, b) p = Softmax <axis = -1> (d)
        [mix] m = Einsum <equation = "bhqk,bkhd->bqhd"> (p, c)
        [out] o = Einsum <equation = "bthd,whd->btw"> (m, wo) h = Add (o, x)
        y = LayerNormalization (h, s, s) }""",
        {"s": weights(64), **{f"w{name}": weights(64, 2, 32) for name in "qkvo"}},
        opset=18,
    )
    rewritten = unmeasured(proto, "tensorrt-fp8", "fp16")
    monkeypatch.setattr(tensorrt, "write_products", lambda model: model)
    models = {"plain": unmeasured(proto, "tensorrt-fp8", "fp16"), "rewritten": rewritten}
    fused = {name: rows["SM89"] for name, rows in count_all(tmp_path, models).items()}
    assert "attention in one kernel" not in fused["plain"]
    assert fused["rewritten"]["attention in one kernel"] == 1


@needs_builder
def test_whole_projections_lose_their_weight(tmp_path: Path) -> None:
    """`divide_products`: a product that is split behind it is not in int8 as a whole, and its parts are."""
    staged = stage(attention(guarded=False), "tensorrt-int8-weights")
    models = {
        "plain": with_qdq(staged.model, staged.plan, staged.encodings, form=BARE).proto,
        "rewritten": with_target_qdq(staged.model, staged.plan, staged.encodings).proto,
    }
    rows = {name: found["SM89"] for name, found in count_all(tmp_path, models).items()}
    assert rows["plain"]["MatMul weight-only as weight-only"] == 1
    assert rows["rewritten"] == {"MatMul weight-only as weight-only": 4}


@needs_builder
def test_packed_projections_lose_their_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`match_packed`: nor is one with a bias that is reshaped first, as of vision transformers in half."""
    proto = build(
        """g (float[N,197,192] x) => (float[N,197,192] y) {
        [qkv] f0 = MatMul (x, w) f = Add (b, f0) h = Reshape (f, pack) t = Transpose <perm = [2,0,3,1,4]> (h)
        q = Gather <axis = 0> (t, n0) k = Gather <axis = 0> (t, n1) v = Gather <axis = 0> (t, n2)
        k1 = Transpose <perm = [0,1,3,2]> (k) [scores] s = MatMul (q, k1) p = Softmax <axis = -1> (s)
        [mix] m = MatMul (p, v) u = Transpose <perm = [0,2,1,3]> (m) j = Reshape (u, joined)
        [out] y = MatMul (j, wo) }""",
        {
            **{"w": weights(192, 576), "b": weights(576), "wo": weights(192, 192)},
            **{f"n{part}": np.asarray(part) for part in range(3)},
            "pack": np.asarray([0, 197, 3, 3, 64]),
            "joined": np.asarray([0, 197, 192]),
        },
        opset=18,
    )
    models = {"rewritten": unmeasured(proto, "tensorrt-int8-weights", "fp16")}
    monkeypatch.setattr(split_projections, "match_packed", lambda *_: None)
    models["plain"] = unmeasured(proto, "tensorrt-int8-weights", "fp16")
    rows = {name: found["SM89"] for name, found in count_all(tmp_path, models).items()}
    assert rows["plain"]["MatMul float as weight-only"] == 1
    assert rows["rewritten"]["MatMul weight-only as weight-only"] == 4


def test_onnxruntime_lacks_the_operators() -> None:
    """`with_mxfp8_functions`: ONNX Runtime runs TensorRT's MXFP8 operators by their functions only."""
    staged = stage(attention(guarded=False), "tensorrt-mxfp8")
    Session(with_target_qdq(staged.model, staged.plan, staged.encodings).proto, 1)
    bare = with_qdq(staged.model, staged.plan, staged.encodings, form=BARE).proto
    with pytest.raises(OnnxfqError, match="TRT_MXFP8"):
        Session(bare, 1)


@needs_builder
def test_a_factor_behind_attention_prevents_fusion(tmp_path: Path) -> None:
    """`equalize`: with a Mul between an int8 attention and the pair behind it there is no single kernel."""
    plain = unmeasured(attention(guarded=False), "tensorrt-int8", "fp16")
    scaled = deepcopy(plain)
    place, quantizer = next(
        (place, node)
        for place, node in enumerate(scaled.graph.node)
        if node.op_type == "QuantizeLinear" and node.input[0] == "j"
    )
    factors = np.linspace(0.5, 2, 256).astype(np.float16)
    scaled.graph.initializer.append(onnx.numpy_helper.from_array(factors, "factors"))
    quantizer.input[0] = "scaled"
    scaled.graph.node.insert(place, onnx.helper.make_node("Mul", ["j", "factors"], ["scaled"], "scale"))
    models = {"plain": plain, "scaled": scaled}
    rows = {name: found["SM89"] for name, found in count_all(tmp_path, models).items()}
    assert rows["plain"]["attention in one kernel"] == 1
    assert "attention in one kernel" not in rows["scaled"]


@needs_builder
def test_a_loop_carries_no_product_in_low_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`part_results`: a product that a Loop carries on runs in float, and in int8 behind an Identity."""
    proto = build(
        """g (float[4,64] x) => (float[4,64] y) { y = Loop (n, go, x) <body = step
        (int64 i, bool on, float[4,64] last) => (bool more, float[4,64] next)
        { more = Identity (on) [mm] next = MatMul (last, w) }> }""",
        {"w": weights(64, 64), "n": np.asarray(3), "go": np.asarray(True)},
    )
    rewritten = unmeasured(proto, "tensorrt-int8", "fp16")
    monkeypatch.setattr(tensorrt, "part_results", lambda proto: proto)
    models = {"plain": unmeasured(proto, "tensorrt-int8", "fp16"), "rewritten": rewritten}
    rows = {name: found["SM89"] for name, found in count_all(tmp_path, models).items()}
    assert rows == {"plain": {"MatMul float as low": 1}, "rewritten": {"MatMul low as low": 1}}


@needs_builder
def test_scales_of_two_types_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`_keep_whole_products`: a product of stacks with float32 and float16 scales is not built."""
    constants = {"w": weights(64, 64) * np.float32(1e-3), "g": np.float32(1e3)}
    text = "g (float[2,16,64] x) => (float[2,16,64] y) { r = Relu (x) [mm] m = MatMul (r, w) y = Mul (m, g) }"
    proto = build(text, constants, opset=18)
    feeds = [{"x": weights(2, 16, 64)}]
    options = onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions("fp16"))
    rewritten = onnxfq.quantize(proto, feeds, options=options).qdq
    monkeypatch.setattr(float_casts, "_keep_whole_products", lambda graph, nodes: None)
    plain = onnxfq.quantize(proto, feeds, options=options).qdq
    built = {
        name: all(report.built for report in reports.values())
        for name, reports in build_all(tmp_path, {"plain": plain, "rewritten": rewritten}).items()
    }
    assert built == {"plain": False, "rewritten": True}


NEWER = {
    "Attention": ("[1,2,4,8]", "y = Attention (x, x, x)"),
    "CausalConvWithState": ("[1,4,8]", "y, state = CausalConvWithState (x, w)"),
    "LinearAttention": ("[1,4,16]", "y = LinearAttention <q_num_heads = 2, kv_num_heads = 2> (x, x, x)"),
    "SwiGLU": ("[2,8]", "y = SwiGLU (x, x)"),
    "Swish": ("[2,8]", "y = Swish (x)"),
}
"""Operator of opset 23 and later -> shape and text of a model of it."""


@needs_builder
@pytest.mark.parametrize("op", sorted(WRITTEN_OUT))
def test_operators_that_are_written_out(op: str, tmp_path: Path) -> None:
    """`write_out_functions`: the builder or ONNX Runtime takes none of these operators as it is."""
    shape, text = NEWER[op]
    weight = {"w": weights(4, 1, 3)} if op == "CausalConvWithState" else {}
    proto = build(f"g (float{shape} x) => (float{shape} y) {{ {text} }}", weight, opset=27, ir=13)
    report = next(iter(build_all(tmp_path, {"plain": proto})["plain"].values()))
    try:
        Session(proto, 1)
        runs = True
    except OnnxfqError:
        runs = False
    assert not (runs and report.built)

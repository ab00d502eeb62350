"""Attention as loading writes it: ONNX's operator as products, and guards of masked rows behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, feed_for, onnx_cases, planned, weights
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxfq.graph.io.load import load
from onnxfq.graph.patterns.attention import find_attentions
from onnxfq.runtime.session import Session
from onnxfq.targets.target import prepare_model

# Features of cases that ONNX's definition writes out; a padded mask is one shorter than the keys.
DEFINED = ("qk_matmul", "mode3", "nonpad", "padded_kv", "window", "softmax_precision")


def cases() -> dict[str, Any]:
    """Return ONNX's cases of Attention in types that ONNX Runtime multiplies on a CPU, by name."""
    attentions = [c for c in onnx_cases() if [n.op_type for n in c.model.graph.node] == ["Attention"]]
    found = {c.name.removeprefix("test_"): c for c in attentions if "bf16" not in c.name}
    assert len(found) > 60
    return found


def operators(proto: onnx.ModelProto) -> list[str]:
    """Return the op types of the main graph."""
    return [node.op_type for node in proto.graph.node]


@pytest.mark.filterwarnings("ignore")  # warnings of onnx about its own cases
def test_onnx_cases() -> None:
    """Each of ONNX's cases is written out and keeps its outputs."""
    for name, case in cases().items():
        loaded = load(case.model).proto
        assert "Attention" not in operators(loaded) and operators(loaded).count("MatMul") == 2, name
        inputs = [value.name for value in case.model.graph.input]
        for given, wanted in case.data_sets:
            got = Session(loaded, 1).run(dict(zip(inputs, given, strict=True)))
            for found, want in zip(got, wanted, strict=True):
                # The scale is rounded once here and twice there; half floats round each product.
                steps = 16 if any(word in name for word in DEFINED) else 4
                step = steps * np.finfo(want.dtype).eps
                np.testing.assert_allclose(found, want, rtol=step, atol=step, err_msg=name)


def masked(opset: int, kind: str) -> onnx.ModelProto:
    """Masked attention of 2 heads as torch's exporters write it, guard and all."""
    zeros = np.float16(0) if kind == "float16" else np.float32(0)
    return build(
        f"""g ({kind}[2,2,3,4] q, {kind}[2,2,4,3] k, {kind}[2,2,3,4] v, bool[2,1,3,3] look)
            => ({kind}[2,2,3,4] y) {{
            m = Where (look, zero, never) s0 = MatMul (q, k) s1 = Mul (s0, scale) [add] s = Add (s1, m)
            p = Softmax <axis = -1> (s) [nan] n = IsNaN (p) [guard] g = Where (n, zero, p)
            [mix] y = MatMul (g, v) }}""",
        {"zero": zeros, "never": zeros - np.inf, "scale": zeros + np.asarray(0.5, zeros.dtype)},
        opset=opset,
    )


def masked_feed(kind: str) -> dict[str, NDArray[Any]]:
    """Return inputs of `masked`; two queries see nothing, one sees everything."""
    rng = np.random.default_rng(0)
    look = rng.random((2, 1, 3, 3)) < 0.6
    look[0, 0, 1] = look[1, 0, 2] = False
    look[1, 0, 0] = True
    shapes = {"q": (2, 2, 3, 4), "k": (2, 2, 4, 3), "v": (2, 2, 3, 4)}
    return {name: rng.normal(size=shape).astype(kind) for name, shape in shapes.items()} | {"look": look}


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
@pytest.mark.parametrize(("kind", "array"), [("float", "float32"), ("float16", "float16")])
def test_a_guard_behind(opset: int, kind: str, array: str) -> None:
    """A guard goes behind the second product, and every number stays what it was, to the bit."""
    proto, feed = masked(opset, kind), masked_feed(array)
    model = prepare_model(load(proto), "tensorrt")
    assert any("guard" in note for note in model.notes)
    (found,) = find_attentions(model.graph().nodes)
    soft = found.mix.inputs[0].inputs[0]
    assert soft.op == "Softmax" and "IsNaN" not in operators(model.proto)
    (got,), (want,) = Session(model.proto, 1).run(feed), Session(proto, 1).run(feed)
    assert not want[0, :, 1].any() and want[1, :, 0].all(), "rows that see nothing, and everything"
    np.testing.assert_array_equal(got, want)


def output(name: str) -> Callable[[onnx.GraphProto], None]:
    """Make a tensor an output of the graph."""
    value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2, 3, 3])
    return lambda graph: graph.output.append(value)


CHANGES = {
    "its probabilities are an output": output("p"),
    "guarded probabilities are an output": output("g"),
    "another value than 0": lambda g: g.initializer[0].CopyFrom(
        helper.make_tensor("zero", TensorProto.FLOAT, [], [1.0])
    ),
    "it is the right side": lambda g: g.node[-1].input.__setitem__(slice(None), ["v2", "g"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_guards_that_stay(change: str) -> None:
    """Anything but exactly such a guard is left as it is."""
    proto = masked(17, "float")
    proto.graph.input.append(helper.make_tensor_value_info("v2", TensorProto.FLOAT, [2, 2, 3, 3]))
    del proto.graph.output[0].type.tensor_type.shape.dim[3]
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "any"
    CHANGES[change](proto.graph)
    loaded = prepare_model(load(proto), "tensorrt")
    assert operators(loaded.proto) == operators(proto) and not any("guard" in n for n in loaded.notes)


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8"])
def test_both_products_are_quantized(recipe: str) -> None:
    """The products of an Attention are placed as in one that was written out by hand."""
    proto = build(
        """g (float[N,3,8] x) => (float[N,3,8] y) { q = MatMul (x, w) [inner] a = Attention
            <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (q, x, x) y = MatMul (a, w) }""",
        {"w": weights(8, 8)},
        opset=23,
        ir=11,
    )
    assert [str(row) for row in planned(proto, recipe).coverage()] == ["MatMul 4/4"]
    (got,), (want,) = (Session(model, 1).run(feed_for(proto)) for model in (load(proto).proto, proto))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # the scale is rounded once, not twice


def test_attention_in_a_body() -> None:
    """An Attention in a branch is written out there, with its constants in the main graph."""
    proto = build(
        """g (float[2,2,3,4] x, bool c) => (float[2,2,3,4] y) {
            y = If (c) <then_branch = t () => (float[2,2,3,4] a) { a = Attention (x, x, x) },
                else_branch = e () => (float[2,2,3,4] b) { b = Neg (x) }> }""",
        opset=23,
        ir=11,
    )
    loaded = load(proto).proto
    body = next(a.g for a in loaded.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in body.node].count("MatMul") == 2 and not body.initializer
    feed = {"x": np.random.default_rng(0).normal(size=(2, 2, 3, 4)).astype(np.float32), "c": np.asarray(True)}
    (got,), (want,) = (Session(model, 1).run(feed) for model in (loaded, proto))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # as above

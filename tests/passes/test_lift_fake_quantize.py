"""Lifting: FakeQuantize nodes become a plan and encodings, from which equal Q/DQ is written."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from builders import Arrays, build_used, constants, run_as_written, scalars, weights
from keyword_numerics import fake_quantize

from onnxfq.errors import ModelError, PlanError
from onnxfq.graph.io.load import load
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.quantized.extract_fake_quantize import drop_copies, has_fake_quantize, lift_fake_quantize


def model_of(text: str, arrays: Arrays | None = None) -> onnx.ModelProto:
    """Return a graph that may use FakeQuantize; scales s and t, zero point z are given."""
    return build_used(text, scalars(np.float32, s=0.1, t=0.25, z=3) | (arrays or {}), onnxfq=1)


def lowered(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the Q/DQ model of a model with FakeQuantize nodes."""
    lifted = lift_fake_quantize(load(proto))
    assert not has_fake_quantize(lifted.model)
    return drop_copies(with_qdq(lifted.model, lifted.plan, lifted.encodings)).proto


X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32) * 5


def test_numbers_are_the_nodes():
    """An activation and a weight, one with a zero point: the Q/DQ model computes on the rounded tensors."""
    text = """g (float[5,4] x) => (float[5,3] y) {
        a = onnxfq.FakeQuantize <qtype = "uint8"> (x, s, z)
        b = onnxfq.FakeQuantize <qtype = "int8", axis = 1> (w, u)
        [mm] y = MatMul (a, b) }"""
    u = np.array([0.01, 0.02, 0.03], np.float32)
    proto = model_of(text, {"w": weights(4, 3), "u": u})
    lifted = lift_fake_quantize(load(proto))
    by_tensor = {p.tensor: p for p in lifted.plan.placements}
    assert {name: (p.role, str(p.spec.qtype)) for name, p in by_tensor.items()} == {
        "x": ("activation", "uint8"),
        "w": ("weight", "int8"),
    }
    assert lifted.reciprocal == 0
    qdq = lowered(proto)
    assert {node.op_type for node in qdq.graph.node} == {"QuantizeLinear", "DequantizeLinear", "MatMul"}
    assert {entry.domain for entry in qdq.opset_import} == {""}
    onnx.checker.check_model(qdq, full_check=True)
    plain = model_of("g (float[5,4] a, float[4,3] b) => (float[5,3] y) { y = MatMul (a, b) }")
    a = fake_quantize(X, 0.1, 3, qtype="uint8")
    b = fake_quantize(constants(proto)["w"], u, qtype="int8", axis=1)
    np.testing.assert_array_equal(
        run_as_written(qdq, {"x": X})[0], run_as_written(plain, {"a": a, "b": b})[0]
    )


def test_a_turned_weight_is_stored():
    """No Transpose stands behind the pair of a weight, whatever its blocks, and all values are the node's."""
    text = """g (float[4,4] x) => (float[4,4] c, float[4,4] e) {
        a = onnxfq.FakeQuantize <qtype = "int8", axis = 1, block_size = 2> (w, u)
        b = Transpose (a)
        c = Add (x, b)
        d = Transpose <perm = [1, 0]> (a)
        e = Sub (x, d) }"""
    u = np.abs(weights(4, 2)) + np.float32(0.1)
    proto = model_of(text, {"w": weights(4, 4), "u": u})
    qdq = lowered(proto)
    assert Counter(n.op_type for n in qdq.graph.node) == {"DequantizeLinear": 1, "Add": 1, "Sub": 1}
    b = fake_quantize(constants(proto)["w"], u, qtype="int8", axis=1, block_size=2).T
    for found, value in zip(run_as_written(qdq, {"x": X[:4]}), (X[:4] + b, X[:4] - b), strict=True):
        np.testing.assert_array_equal(found, value)


def test_one_tensor_in_two_grids():
    """Two grids of one tensor, one behind the other, and an output that is rounded: each keeps a pair."""
    text = """g (float[5,4] x) => (float[5,4] a, float[5,4] c, float[5,4] d) {
        a = onnxfq.FakeQuantize <qtype = "int8"> (x, s)
        b = onnxfq.FakeQuantize <qtype = "int4"> (x, t)
        c = Neg (b)
        e = onnxfq.FakeQuantize <qtype = "int4"> (a, t)
        d = Neg (e) }"""
    qdq = lowered(model_of(text))
    assert "Identity" not in {node.op_type for node in qdq.graph.node}
    a, b = fake_quantize(X, 0.1, qtype="int8"), fake_quantize(X, 0.25, qtype="int4")
    expected = (a, -b, -fake_quantize(a, 0.25, qtype="int4"))
    for found, value in zip(run_as_written(qdq, {"x": X}), expected, strict=True):
        np.testing.assert_array_equal(found, value)


def test_reciprocals_are_counted():
    """Nodes that multiply by 1 / scale are counted, for QuantizeLinear divides."""
    text = """g (float[5,4] x) => (float[5,4] c) {
        a = onnxfq.FakeQuantize <qtype = "int8", arithmetic = "reciprocal"> (x, s)
        b = onnxfq.FakeQuantize <qtype = "int8", arithmetic = "reciprocal"> (a, t)
        c = Neg (b) }"""
    assert lift_fake_quantize(load(model_of(text))).reciprocal == 2


def test_a_plain_model_has_none():
    """Models with and without the nodes are distinguished."""
    assert not has_fake_quantize(load(model_of("g (float[5,4] x) => (float[5,4] y) { y = Neg (x) }")))


NODE = """g (float[5,4] x{more}) => (float[5,4] c) {{
    a = onnxfq.FakeQuantize <qtype = "int8"{attr}> (x, {params})
    c = Neg (a) }}"""


@pytest.mark.parametrize(
    ("error", "message", "parts", "arrays"),
    [
        (PlanError, "and 'live' is computed", {"more": ", float live", "params": "live"}, {}),
        (PlanError, "found 'half_up'", {"attr": ', rounding = "half_up"', "params": "s"}, {}),
        (PlanError, "integer zero points only", {"params": "s, h"}, {"h": np.float32(0.5)}),
        (ModelError, "needs block_size or block_shape", {"params": "m"}, {"m": np.ones((5, 2), np.float32)}),
    ],
    ids=["computed scale", "rounding", "fraction", "blocks"],
)
def test_what_quantize_linear_cannot_say(error, message, parts, arrays):
    """A grid that QuantizeLinear cannot express is refused in one line with the tensor's name."""
    text = NODE.format(**{"more": "", "attr": "", **parts})
    with pytest.raises(error, match=f"tensor 'x'.*{message}"):
        lift_fake_quantize(load(model_of(text, arrays)))

"""FakeQuantize nodes, and arithmetic that is the same, become a plan and encodings, and equal Q/DQ."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from builders import Arrays, build_used, constants, run_as_written, scalars, weights
from keyword_numerics import fake_quantize

from onnxfq.errors import ModelError, PlanError
from onnxfq.graph.io.load import load
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.quantized.extract_fake_quantize import drop_copies, has_fake_quantize, lift_fake_quantize
from onnxfq.quantized.recognize_fake_quantize import qtype_of_limits, recognize_rounding


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


NUMBERS = {
    "s": 0.1, "r": 4.0, "q": 0.25, "z": 3.0, "two": 2.0,
    "l8": -128.0, "h8": 127.0, "l4": -8.0, "h4": 7.0, "lo": 0.0, "hu": 15.0, "hub": 255.0, "odd": 7.5,
}  # fmt: skip
AFTER = "a = Div (x, s) b = Round (a) c = Add (b, z) d = Clip (c, lo, hub) e = Sub (d, {}) y = Mul (e, s)"
BEFORE = "a = Div (x, s) b = Add (a, z) c = Round (b) d = Clip (c, lo, hub) e = Sub (d, z) y = Mul (e, s)"
# name: (nodes from x to y, (qtype, scale, zero point, arithmetic) or None)
CHAINS = {
    "divide": (
        "a = Div (x, s) b = Round (a) c = Clip (b, l4, h4) y = Mul (c, s)", ("int4", 0.1, 0, "divide"),
    ),
    "clip first": (
        "a = Div (x, s) b = Clip (a, l8, h8) c = Round (b) y = Mul (c, s)", ("int8", 0.1, 0, "divide"),
    ),
    "reciprocal": (
        "a = Mul (x, r) b = Round (a) c = Clip (b, lo, hu) y = Mul (c, q)", ("uint4", 0.25, 0, "reciprocal"),
    ),
    "constant first": (
        "a = Mul (r, x) b = Round (a) c = Clip (b, lo, hu) y = Mul (q, c)", ("uint4", 0.25, 0, "reciprocal"),
    ),
    "zero point after": (AFTER.format("z"), ("uint8", 0.1, 3, "divide")),
    "zero point before": (BEFORE, ("uint8", 0.1, 3, "divide")),
    "no limits": ("a = Div (x, s) b = Round (a) y = Mul (b, s)", None),
    "other scale": ("a = Div (x, s) b = Round (a) c = Clip (b, l4, h4) y = Mul (c, q)", None),
    "odd limits": ("a = Div (x, s) b = Round (a) c = Clip (b, l4, odd) y = Mul (c, s)", None),
    "other offset": (AFTER.format("two"), None),
    "divided by x": ("a = Div (s, x) b = Round (a) c = Clip (b, l4, h4) y = Mul (c, s)", None),
    "alone": ("y = Round (x)", None),
}  # fmt: skip


def chain(nodes: str):
    """Return the model of a chain with the numbers that it names."""
    numbers = {name: np.float32(value) for name, value in NUMBERS.items()}
    return load(build_used(f"g (float[N,4] x) => (float[N,4] y) {{ {nodes} }}", numbers))


CALLS = {
    "Div": np.divide, "Mul": np.multiply, "Add": np.add, "Sub": np.subtract,
    "Round": np.rint, "Clip": np.clip,
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name):
    """A chain that is quantization is one node with its numbers; any other stays as it was written.

    The chain in NumPy, operator by operator in float32, gives the bits of fake_quantize with its numbers.
    Except for a zero point added before the rounding: that sum rounds once more, and a value at the middle
    between two steps may go to the other one. Such values are left out.
    """
    nodes, expected = CHAINS[name]
    model = chain(nodes)
    recognized = recognize_rounding(model)
    found, given = recognized.proto.graph, model.proto.graph.node
    assert (recognized is not model) == (expected is not None)
    if expected is None:
        assert [n.op_type for n in found.node] == [n.op_type for n in given]
        return
    (node,) = found.node
    attributes = {a.name: a.s.decode() for a in node.attribute}
    held = {t.name: float(np.frombuffer(t.raw_data, np.float32)[0]) for t in found.initializer}
    qtype, scale, zero_point, arithmetic = expected
    assert (node.op_type, node.input[0], node.output[0]) == ("FakeQuantize", "x", "y")
    assert attributes == {"qtype": qtype, "arithmetic": arithmetic}
    assert (held[node.input[1]], held[node.input[2]]) == (np.float32(scale), zero_point)
    assert recognize_rounding(recognized) is recognized
    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32) * 3
    values = {"x": x, **{n: np.float32(v) for n, v in NUMBERS.items()}}
    for node in given:
        values[node.output[0]] = CALLS[node.op_type](*(values[i] for i in node.input))
    wanted = fake_quantize(x, np.float32(scale), zero_point, qtype=qtype, arithmetic=arithmetic)
    steps = x / np.float32(scale)
    sure = (np.abs(steps - np.floor(steps) - 0.5) > 1e-3) | (name != "zero point before")
    assert sure.mean() > 0.98
    np.testing.assert_array_equal(wanted[sure], values["y"][sure] + 0.0)


def test_two_chains_and_their_neighbours():
    """Several chains are replaced at once, and what stands around them stays."""
    nodes = """a = Relu (x) b = Div (a, s) c = Round (b) d = Clip (c, l8, h8) e = Mul (d, s)
        f = Mul (e, r) g = Round (f) h = Clip (g, lo, hu) i = Mul (h, q) y = Neg (i)"""
    found = recognize_rounding(chain(nodes)).proto.graph.node
    assert [node.op_type for node in found] == ["Relu", "FakeQuantize", "FakeQuantize", "Neg"]


def test_limits_name_a_type():
    """Every integer type is found by its own limits, narrower ones limit the smallest that holds them."""
    for qtype in QTYPES.values():
        if not qtype.is_float:
            assert qtype_of_limits(qtype.qmin, qtype.qmax) == qtype
    assert str(qtype_of_limits(-127, 127)) == "int8[-127,127]"
    for limits in ((-8.5, 7), (1, 5), (0, 0), (-1e6, 1e6)):
        assert qtype_of_limits(*limits) is None

"""Quantization written out in arithmetic becomes equal FakeQuantize nodes; other rounding stays."""

from __future__ import annotations

import numpy as np
import pytest
from builders import build_used

from onnxfq.graph.io.load import load
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.quantized.recognize_fake_quantize import qtype_of_limits, recognize_rounding

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

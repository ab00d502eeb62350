"""Integer sums: against NumPy in whole numbers, to the bit, and near Q/DQ in float."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import pytest
from builders import BUILDERS, Arrays, assert_same_outputs, build, constants, linear, qdq_of, scalars, stage
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.signature import with_outputs
from onnxfq.passes.integer_bounds import EXACT
from onnxfq.passes.integer_matmul import integer_products
from onnxfq.runtime.session import Session


def run(proto: onnx.ModelProto, feed: Arrays, outputs: list[str]) -> list[np.ndarray]:
    """Run without optimisation."""
    return Session(with_outputs(proto, outputs), 1, exact=True).run(feed, outputs)


def product(k: int, n: int, rows: int, seed: int, one_sign: bool) -> tuple[onnx.ModelProto, Arrays]:
    """A MatMul of int8 [rows, k] with a constant int8 [k, n], a scale for each column."""
    rng = np.random.default_rng(seed)
    low = 100 if one_sign else -128
    proto = build(
        f"g (int8[{rows},{k}] q) => (float[{rows},{n}] y) {{"
        "[dq_x] x = DequantizeLinear (q, sx, zx)"
        "[dq_w] w = DequantizeLinear <axis = 1> (wq, sw, zw)"
        "[mm] y = MatMul (x, w) }",
        {
            "sx": np.float32(rng.uniform(0.001, 1)),
            "zx": np.int8(0),
            "wq": rng.integers(low, 128, (k, n)).astype(np.int8),
            "sw": rng.uniform(0.001, 1, n).astype(np.float32),
            "zw": np.zeros(n, np.int8),
        },
    )
    return proto, {"q": rng.integers(low, 128, (rows, k)).astype(np.int8)}


@given(
    k=st.integers(1, 3000),
    n=st.integers(1, 4),
    rows=st.integers(1, 3),
    seed=st.integers(0, 99),
    one_sign=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_sums_are_whole_numbers(k: int, n: int, rows: int, seed: int, one_sign: bool) -> None:
    """The sum is computed in 64-bit integers, made float32 once, times the product of both scales."""
    proto, feed = product(k, n, rows, seed, one_sign)
    made = integer_products(proto)
    assert (made.products, made.left) == (("mm",), {})
    total = feed["q"].astype(np.int64) @ constants(proto)["wq"].astype(np.int64)
    want = total.astype(np.float32) * (constants(proto)["sx"] * constants(proto)["sw"])
    np.testing.assert_array_equal(run(made.proto, feed, ["y"])[0], want)


def test_long_sums_are_split() -> None:
    """If float32 sums of the integers would round, the two halves do not: the case is one of those."""
    proto, feed = product(2000, 3, 2, 0, one_sign=True)
    total = feed["q"].astype(np.int64) @ constants(proto)["wq"].astype(np.int64)
    assert total.max() > EXACT
    ops = [node.op_type for node in integer_products(proto).proto.graph.node]
    assert ops.count("MatMul") == 2


def test_what_is_too_long_is_told() -> None:
    """Beyond what halves hold the reason says so."""
    proto, _ = product(20000, 1, 1, 0, one_sign=True)
    assert "24 bits" in integer_products(proto).left["mm"]


QUANTIZED = sorted(set(BUILDERS) - {"if_body", "vector_weight"})


@pytest.mark.parametrize("name", [*QUANTIZED, "if_body"])
def test_every_product(name: str) -> None:
    """Each product equals the product in float64, which are exact here; the bias and alpha come behind it.

    The whole model is what Q/DQ computes except at the edge between two steps.
    """
    staged = stage(BUILDERS[name]())
    proto = qdq_of(staged)
    made = integer_products(proto)
    outputs = [output.name for output in proto.graph.output]
    both = (run(one, staged.feed, outputs) for one in (proto, made.proto))
    for want, got in zip(*both, strict=True):
        assert np.linalg.norm(got - want) <= 0.02 * np.linalg.norm(want)
    if name == "if_body":
        assert made.products == ("outside", "inside")
        return
    products = [n for n in proto.graph.node if n.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    assert set(made.products) == {node.name for node in products}
    for node in products:
        got, *multiplied = run(made.proto, staged.feed, [node.output[0], *node.input[:2]])
        values = dict(zip(node.input, (a.astype(np.float64) for a in multiplied), strict=False))
        values |= {name: constants(proto)[name].astype(np.float64) for name in node.input[2:]}
        want = ReferenceEvaluator(deepcopy(node)).run(None, values)[0]
        # Products of float32 numbers in float64 are right to 2^-48 of the largest; float32 rounds twice.
        np.testing.assert_allclose(got, want, rtol=4e-7, atol=4e-7 * np.abs(want).max())


HALVES = {
    "float16 scales": (
        "[dq_x] x = DequantizeLinear (q, sx, zx)"
        "[dq_w] w = DequantizeLinear <axis = 0> (wq, sw, zw)"
        "[gemm] y = Gemm <transB = 1> (x, w, b)",
        scalars(np.float16, sx=0.01, sw=[0.01, 0.02, 0.03], b=[0.1, -0.2, 0.3]),
    ),
    "casts": (
        "[dq_x] x0 = DequantizeLinear (q, sx, zx) x = Cast <to = 10> (x0)"
        "[dq_w] w0 = DequantizeLinear <axis = 0> (wq, sw, zw) w1 = Cast <to = 10> (w0)"
        "w = Transpose <perm = [1,0]> (w1) [mm] y = MatMul (x, w)",
        {"sx": np.float32(1e-5), "sw": np.float32([1, 2, 3])},
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_float16(name: str) -> None:
    """The sum is rounded to float16 once, behind scale and bias; small scales stand in front of casts."""
    text, scales = HALVES[name]
    rng = np.random.default_rng(0)
    stored = {"zx": np.int8(0), "wq": rng.integers(-128, 128, (3, 64)).astype(np.int8)}
    arrays = stored | {"zw": np.zeros(3, np.int8)} | scales
    proto = build(f"g (int8[2,64] q) => (float16[2,3] y) {{ {text} }}", arrays, opset=19)
    feed = {"q": rng.integers(-128, 128, (2, 64)).astype(np.int8)}
    total = (feed["q"].astype(np.int64) @ stored["wq"].T.astype(np.int64)).astype(np.float32)
    factor = np.float32(scales["sx"]) * scales["sw"].astype(np.float32)
    want = (total * factor + np.float32(scales.get("b", 0))).astype(np.float16)
    np.testing.assert_array_equal(run(integer_products(proto).proto, feed, ["y"])[0], want)


def test_what_is_left() -> None:
    """Weight-only, float8 and zero points stay in float, with the reason; products of bodies do not."""
    assert "one side" in integer_products(qdq_of(stage(linear(256, 6), "tensorrt-int4"))).left["mm"]
    assert "int8" in integer_products(qdq_of(stage(linear(64, 6), "tensorrt-fp8"))).left["mm"]
    proto, _ = product(8, 2, 2, 0, one_sign=False)
    offset = next(tensor for tensor in proto.graph.initializer if tensor.name == "zx")
    offset.CopyFrom(numpy_helper.from_array(np.asarray(3, np.int8), "zx"))
    assert "zero point" in integer_products(proto).left["mm"]


def test_nothing_to_do() -> None:
    """A float model stays as it is."""
    proto = linear(4, 3)
    made = integer_products(proto)
    assert not made.products and not made.left
    assert_same_outputs(proto, made.proto)

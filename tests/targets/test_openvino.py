"""OpenVINO: where its recipe puts pairs, what the rules say, and what OpenVINO itself makes of both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import (
    attention,
    build,
    build_used,
    conv_transpose,
    feed_for,
    plain_quantize,
    planned,
    stage,
    two_branch,
    weights,
)
from integer_kernels import simulate
from one_operator import dequantized, integers, one_operator, pair, weight

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import DataError, RuntimeLibraryError
from onnxfq.numerics.granularity import CHANNELS
from onnxfq.runtime.session import Session
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.openvino.runtime import open_model, profile_model
from onnxfq.targets.target import BuildOptions

pytest.importorskip("openvino", reason="OpenVINO is not installed")

STACK = {"w_q": integers(4, 64, 64), "ws": np.full(64, np.float32(0.03)), "wz": np.zeros(64, np.int8)}
SCALES = {"sc": np.linspace(0.02, 0.04, 8, dtype=np.float32), "zc": np.full(8, 128, np.uint8)}
BY_CHANNEL = "q = QuantizeLinear <axis = 1> (x, sc, zc) f = DequantizeLinear <axis = 1> (q, sc, zc) "
CONV = dequantized() + "y = Conv (d, w)"
TRANSPOSED = dequantized(1) + "y = ConvTranspose (d, w)"
PRODUCT, SIDES = "y = MatMul (d, e)", ("1,2,8,16", "1,2,16,8")
SQUARE, MATRIX = (8, 8, 3, 3), (64, 64)
Planted = tuple[onnx.ModelProto, str, str]


def planted() -> Iterator[tuple[str, Planted]]:
    """Yield (name, (network of one operator, rule that reports it in float, verdict of OpenVINO))."""
    square, tokens = weight(SQUARE), "2,8,64"
    yield "conv", (one_operator(CONV, square), "", "low")
    groups = dequantized() + "y = Conv <group = 2> (d, w)"
    yield "groups", (one_operator(groups, weight((8, 4, 3, 3))), "", "low")
    yield "signed", (one_operator(CONV, square, dtype=np.int8), "", "low")
    depthwise = BY_CHANNEL + dequantized() + "y = Conv <group = 8> (f, w)"
    yield "depthwise scales", (one_operator(depthwise, weight((8, 1, 3, 3)) | SCALES), "", "low")
    apart = SCALES | {"zc": np.arange(100, 180, 10).astype(np.uint8)}
    yield "depthwise zero points", (one_operator(depthwise, weight((8, 1, 3, 3)) | apart), "", "low")
    rows = depthwise.replace("axis = 1> (q", "axis = 2> (q").replace("axis = 1> (x", "axis = 2> (x")
    yield "scales of rows", (one_operator(rows, weight((8, 1, 3, 3)) | apart), "activation-scales", "float")
    volume, eight = dequantized() + "y = Conv <group = 8> (d, w)", weight((8, 1, 3, 3, 3))
    yield "volume", (one_operator(volume, eight, "1,8,8,8,8"), "zero-point", "weight-only")
    yield "signed volume", (one_operator(volume, eight, "1,8,8,8,8", dtype=np.int8), "", "low")
    several = BY_CHANNEL + dequantized() + "y = Conv (f, w)"
    yield "channel scales", (one_operator(several, square | SCALES), "activation-scales", "float")
    offset = {"z": np.asarray(9, np.int8)}
    yield (
        "signed zero point",
        (one_operator(CONV, square | offset, dtype=np.int8), "zero-point", "weight-only"),
    )
    unsigned = weight(SQUARE, dtype=np.uint8, zero=128)
    yield "unsigned weight", (one_operator(CONV, unsigned), "weight-type", "float")
    from_zero = weight(SQUARE, dtype=np.uint8, zero=0)
    yield "unsigned weight from 0", (one_operator(CONV, from_zero), "weight-type", "float")
    yield "zero point of a weight", (one_operator(CONV, weight(SQUARE, zero=3)), "weight-type", "float")
    yield "weight alone", (one_operator(CONV.replace("(d,", "(x,"), square), "weight-only", "float")
    linear = dequantized(1) + "y = MatMul (x, w)"
    yield "linear weight alone", (one_operator(linear, weight(MATRIX, 1), tokens), "", "weight-only")
    gemm = dequantized() + "y = Gemm <transB = 1> (d, w, b)"
    yield "gemm", (one_operator(gemm, weight(MATRIX) | {"b": weights(64)}, "8,64"), "", "low")
    yield "stack", (one_operator(dequantized(2) + "y = MatMul (d, w)", STACK, "4,8,64"), "", "low")
    yield "transposed", (one_operator(TRANSPOSED, weight(SQUARE, 1)), "zero-point", "float")
    yield "transposed signed", (one_operator(TRANSPOSED, weight(SQUARE, 1), dtype=np.int8), "", "low")
    groups = weight((8, 4, 3, 3), None)
    apart = dequantized(None) + "y = ConvTranspose <group = 2> (d, w)"
    yield "transposed groups", (one_operator(apart, groups, dtype=np.int8), "float-kernel", "float")
    left = dequantized(None) + "y = MatMul (w, d)"
    yield (
        "left",
        (one_operator(left, weight(MATRIX, None) | {"z": np.uint8(100)}, "2,64,8"), "zero-point", "float"),
    )
    yield "left of signed", (one_operator(left, weight(MATRIX, None), "2,64,8", dtype=np.int8), "", "low")
    yield "two activations", (one_operator(PRODUCT, {}, *SIDES), "zero-point", "float")
    yield "two signed activations", (one_operator(PRODUCT, {}, *SIDES, dtype=np.int8), "", "low")
    for op, verdict in (("Conv", "weight-only"), ("ConvTranspose", "weight-only")):
        computed = one_operator(f"y = {op} (d, e)", {}, "1,8,8,8", "8,8,3,3", dtype=np.int8)
        yield f"{op} of two activations", (computed, "float-kernel", verdict)


PLANTED = dict(planted())

HAS_TILES = "amx_int8" in (CPU.read_text() if (CPU := Path("/proc/cpuinfo")).exists() else "")
"""Whether OpenVINO chooses among the kernels of AMX: an Intel Xeon without it has `brgconv` for both."""


def built(model: onnx.ModelProto) -> CheckResult:
    """Return the check with OpenVINO's own graph."""
    return onnxfq.check(model, "openvino", build=BuildOptions())


def low(proto: onnx.ModelProto) -> str:
    """Return the coverage of `proto` by recipe openvino-int8, as OpenVINO has it."""
    feeds = [feed_for(proto, seed) for seed in range(3)]
    result = built(plain_quantize(proto, feeds, recipe="openvino-int8").qdq)
    assert result.passed, result.table()
    return ", ".join(map(str, result.coverage))


@pytest.mark.parametrize("name", PLANTED)
def test_rules_agree_with_openvino(name: str) -> None:
    """What a rule reports in float runs in float, and what none reports runs as promised."""
    model, rule, verdict = PLANTED[name]
    result = built(model)
    (found,) = (node.verdict for node in result.engine)
    if found == "low" and not HAS_TILES and name == "signed zero point":
        pytest.skip("the kernels of this processor take it; those of others do not")
    assert found == verdict
    # The runtime adds nothing that a rule misses.
    for findings in (onnxfq.check(model, "openvino").findings, result.findings):
        assert {found.rule for found in findings} == {rule} - {""}
    assert result.coverage[0].kept == (not rule)


@pytest.mark.parametrize("scale", ["Mul (b, k)", "Div (b, k)"])
def test_a_shared_convolution_whose_result_is_scaled(scale: str) -> None:
    """OpenVINO runs it in 8 bits, with the factor in a copy of the weight."""
    proto = build(
        f"""g (float[1,8,8,8] x) => (float[1,8,8,8] y) {{
            a = Conv <pads = [1,1,1,1]> (x, w) r = Relu (a) b = Conv <pads = [1,1,1,1]> (r, w)
            c = {scale} y = Exp (c) }}""",
        {"w": weights(8, 8, 3, 3) / 9, "k": np.float32(1.7)},
    )
    assert low(proto) == "Conv 2/2 low"


def silu() -> onnx.ModelProto:
    """Two convolutions with SiLU, joined for a third."""
    return build(
        """g (float[1,8,8,8] x) => (float[1,8,8,8] y) {
            c0 = Conv <pads = [1,1,1,1]> (x, w0) g0 = Sigmoid (c0) m0 = Mul (c0, g0)
            c1 = Conv <pads = [1,1,1,1]> (m0, w1) g1 = Sigmoid (c1) m1 = Mul (c1, g1)
            z = Concat <axis = 1> (m0, m1) y = Conv <pads = [1,1,1,1]> (z, w2) }""",
        {"w0": weights(8, 8, 3, 3), "w1": weights(8, 8, 3, 3, seed=1), "w2": weights(8, 16, 3, 3, seed=2)},
    )


def mobile(activation: str = "Relu (a)", strides: int = 2) -> onnx.ModelProto:
    """Two blocks with depthwise convolutions, and a product without an activation between them."""
    step = f"pads = [1,1,1,1], strides = [{strides},{strides}]"
    return build(
        f"""g (float[1,3,12,12] x) => (float[] y) {{
            [c0] a = Conv <pads = [1,1,1,1]> (x, w0, b0) h = {activation}
            [depth0] b = Conv <group = 8, {step}> (h, w1, b0) k = Clip (b, zero, six)
            [c1] c = Conv (k, w2) [c2] e = Conv (c, w3) s = Sigmoid (e) f = Mul (e, s)
            [depth1] g = Conv <group = 16, pads = [2,2,2,2]> (f, w4) [c3] y = Conv (g, w5) }}""",
        {
            "w0": weights(8, 3, 3, 3), "b0": weights(8), "w1": weights(8, 1, 3, 3, seed=1),
            "w2": weights(6, 8, 1, 1, seed=2), "w3": weights(16, 6, 1, 1, seed=3),
            "w4": weights(16, 1, 5, 5, seed=4), "w5": weights(4, 16, 1, 1, seed=5),
            "zero": np.float32(0), "six": np.float32(6),
        },
    )  # fmt: skip


def gated() -> onnx.ModelProto:
    """A gate over the channels of a convolution, and poolings."""
    return build(
        """g (float[1,8,8,8] x) => (float[1,4] y) {
            c0 = Conv <pads = [1,1,1,1]> (x, w0) a = Relu (c0) p = MaxPool <kernel_shape = [2,2]> (a)
            c1 = Conv (p, w1) b = Relu (c1)
            m = GlobalAveragePool (b) c2 = Conv (m, w2) s = Sigmoid (c2) u = Mul (b, s)
            v = AveragePool <kernel_shape = [2,2]> (u) c3 = Conv (v, w3)
            r = ReduceMean <axes = [2,3], keepdims = 0> (c3) y = MatMul (r, w4) }""",
        {
            "w0": weights(8, 8, 3, 3), "w1": weights(8, 8, 3, 3, seed=1), "w2": weights(8, 8, 1, 1),
            "w3": weights(8, 8, 3, 3, seed=3), "w4": weights(8, 4),
        },
    )  # fmt: skip


def biased() -> onnx.ModelProto:
    """A residual sum of a transformer: products with biases, and constants that scale."""
    return build(
        """g (float[2,8,16] x) => (float[2,8,16] y) {
            m = MatMul (x, w0) a = Add (m, b) h = Mul (a, half) r = Relu (h) p = MatMul (r, w1) c = Add (p, b)
            s = Add (c, x) y = LayerNormalization (s, gain) }""",
        {
            "w0": weights(16, 16), "w1": weights(16, 16, seed=1), "b": weights(16), "half": np.float32(0.5),
            "gain": np.ones(16, np.float32),
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("proto", "coverage"),
    [
        pytest.param(two_branch(), "Conv 3/3 low, Add 1/1 low", marks=pytest.mark.sample),
        (silu(), "Conv 3/3 low"),
        (mobile(), "Conv 6/6 low"),
        (
            gated(),
            "Conv 4/4 low, MaxPool 1/1 low, GlobalAveragePool 1/1 low, Mul 1/1 low, AveragePool 1/1 low, "
            "ReduceMean 1/1 low, MatMul 1/1 low",
        ),
        pytest.param(attention(), "MatMul 5/5 low", marks=pytest.mark.sample),
        (biased(), "MatMul 2/2 low"),
        (conv_transpose(), "ConvTranspose 1/1 low"),
    ],
    ids=["residual", "silu", "mobile", "gated", "attention", "biased", "transposed"],
)
@pytest.mark.wide_sums
def test_recipe_runs_low(proto: onnx.ModelProto, coverage: str) -> None:
    """Every pair of the recipe is one that OpenVINO computes with."""
    assert sorted(low(proto).split(", ")) == sorted(coverage.split(", "))


BODIES = {
    "If": """If (c) <then_branch = g1 () => (float[2,4,8,8] p) {
                        u = Conv <pads = [1,1,1,1]> (a, v) p = Relu (u) },
                    else_branch = g2 () => (float[2,4,8,8] q) { q = Neg (a) }>""",
    "Loop": """Loop (n, c, a) <body = g1 (int64 i, bool k, float[2,4,8,8] b) => (bool k2, float[2,4,8,8] p) {
        k2 = Identity (k) u = Conv <pads = [1,1,1,1]> (b, v) p = Relu (u) }>""",
}


@pytest.mark.parametrize("owner", BODIES)
def test_layers_of_bodies_are_asked_too(owner: str) -> None:
    """OpenVINO multiplies low inside of an If and a Loop, and the check sees it there."""
    proto = build_used(
        "g (float[2,4,8,8] x, bool c) => (float[2,4,8,8] y) { m = Conv <pads = [1,1,1,1]> (x, w) "
        f"a = Relu (m) y = {BODIES[owner]} }}",
        {"w": weights(4, 4, 3, 3), "v": weights(4, 4, 3, 3), "n": np.asarray(2)},
    )
    feeds = [feed_for(proto, seed) for seed in range(4)]
    made = plain_quantize(proto, feeds, recipe="openvino-int8").qdq
    (row,) = onnxfq.check(made, "openvino", build=BuildOptions()).coverage
    assert (row.op_type, row.kept, row.promised) == ("Conv", 2, 2)


@pytest.mark.sample
def test_signed_where_zero_points_cost_the_kernel() -> None:
    """Products of two activations have int8 without a zero point, and uint8 for what is never negative."""
    plan = planned(attention(), "openvino-int8")
    formats = {p.tensor: (p.spec.qtype.name, p.spec.symmetric) for p in plan.activations}
    kinds = {node.op: node for node in onnxfq.load(attention()).graph().nodes}
    assert formats[kinds["Softmax"].outputs[0].name] == ("uint8", False)
    assert ("int8", True) in formats.values()


def test_no_zero_point_in_front_of_scales_of_channels() -> None:
    """A convolution whose result has them reads int8; not the network's input, whose sign is unknown."""
    plan = planned(mobile(), "openvino-int8")
    signed = {p.tensor for p in plan.activations if p.spec.symmetric}
    assert signed == {"c"}
    by_channel = {p.tensor for p in plan.activations if p.spec.granularity == CHANNELS}
    assert by_channel == {"h", "f"}


def kernel_of(model: onnx.ModelProto, node: str) -> str:
    """Return the kernel that OpenVINO chooses for a node."""
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(model.SerializeToString(), "CPU", options)
    layers = [op.get_rt_info() for op in compiled.get_runtime_model().get_ordered_ops()]
    names = {str(i["originalLayersNames"].astype(str)): str(i["primitiveType"].astype(str)) for i in layers}
    return next(kernel for name, kernel in names.items() if node in name.split(","))


THREADS = """
import os, sys, threading
from builders import conv_relu, feed_for
from onnxfq.targets.openvino.runtime import open_model
sys.setswitchinterval(1e-6)
run, feed, start = open_model(conv_relu(), 1), feed_for(conv_relu(), 0), threading.Barrier(4)
threads = [threading.Thread(target=lambda: (start.wait(), run(feed))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os._exit(0)
"""


def test_threads_begin_together() -> None:
    """The first runs of a process are in several threads: without one before, half of such processes hung."""
    folders = Path(onnxfq.__file__).parents[1], Path(__file__).parents[1] / "networks"
    path = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", THREADS], env=os.environ | path, timeout=120, check=True)


@pytest.mark.skipif(not HAS_TILES, reason="only processors with AMX lose the kernel")
def test_a_zero_point_and_scales_of_channels_cost_the_kernel() -> None:
    """A failure means that the rule can go."""
    feeds = [feed_for(mobile(), seed) for seed in range(3)]
    made = onnxfq.quantize(mobile(), feeds, recipe="openvino-int8").qdq
    (q,) = (node for node in made.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "c")
    zero = next(tensor for tensor in made.graph.initializer if tensor.name == q.input[2])
    assert "brgconv" in (fast := kernel_of(made, "c2")) or "avx512" not in fast
    zero.CopyFrom(onnx.numpy_helper.from_array(np.asarray(137, np.uint8), zero.name))
    del made.graph.value_info[:]
    assert kernel_of(made, "c2").startswith("jit")


@pytest.mark.grid
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("activation", ["Relu (a)", "Clip (a, zero, six)", "LeakyRelu <alpha = 0.3> (a)"])
@pytest.mark.wide_sums
def test_numbers_of_scales_of_channels(activation: str, strides: int) -> None:
    """OpenVINO gives the numbers of exact integer arithmetic, but for elements behind a tie."""
    proto = onnx.shape_inference.infer_shapes(mobile(activation, strides))
    feeds = [feed_for(proto, seed) for seed in range(3)]
    made = plain_quantize(proto, feeds, recipe="openvino-int8").qdq
    assert [node.op_type for node in made.graph.node].count("Mul") == 1  # of the SiLU
    feed = feed_for(proto, 7)
    wanted, found = simulate(made, feed)["y"], open_model(made, 1)(feed)["y"]
    assert np.mean(np.abs(found - wanted) > 1e-5 * np.abs(wanted).max()) <= 0.03


def differ(model: onnx.ModelProto, feed: dict[str, np.ndarray], rules: set[str]) -> float:
    """Return how far OpenVINO is from ONNX Runtime at most, where the check names exactly `rules`."""
    result = onnxfq.check(model, "openvino")
    assert {found.rule for found in result.findings} == rules and result.passed == (not rules)
    got, wanted = open_model(model, 1)(feed)["y"], Session(model, 1, exact=True).run(feed)[0]
    return float(np.abs(got - wanted).max())


def test_zero_points_of_channels_with_several_outputs() -> None:
    """OpenVINO takes the zero points of other channels; the rule says so, and equal ones are right."""
    text = BY_CHANNEL + dequantized() + "y = Conv <group = 8> (f, w)"
    feed = {"x": np.random.default_rng(0).normal(size=(1, 8, 8, 8)).astype(np.float32)}
    for zeros, rules in ((np.arange(100, 180, 10), {"channel-zero-points"}), (np.full(8, 128), set())):
        model = one_operator(text, weight((16, 1, 3, 3)) | SCALES | {"zc": zeros.astype(np.uint8)})
        assert (differ(model, feed, rules) > 1) == bool(rules)


def test_profile_counts_what_is_executed() -> None:
    """The profile has the layers of the compiled graph, and their times add up to less than a second."""
    model = PLANTED["conv"][0]
    seconds = profile_model(model, 1, feed_for(model))
    assert "Convolution" in {kind for kind, _ in seconds}
    assert 0 < sum(seconds.values()) < 1


def test_threads_share_an_opened_model(digits_model: Path, digit_images: np.ndarray) -> None:
    """Feeds of several threads at once have the results of one after another."""
    run = open_model(digits_model, 1)
    feeds = [{"image": digit_images[at : at + 1]} for at in range(32)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, feeds))
    for feed, values in zip(feeds, together, strict=True):
        np.testing.assert_array_equal(values["logits"], run(feed)["logits"])


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_wide_pairs_are_taken_out(dtype: type) -> None:
    """OpenVINO does not clip to the range of a pair of 16 bits; the rule says so, and 8 bits are clipped."""
    feed = {"x": np.full((1, 8, 8, 8), 100, np.float32)}
    for kind, rules in ((dtype, {"wide-pair"}), (np.uint8, set())):
        model = one_operator("y = Relu (d)", {"s": np.float32(1 / 1024)}, dtype=kind, opset=21)
        assert {found.rule for found in onnxfq.check(model, "openvino").findings} == rules
        differs = not np.allclose(open_model(model, 1)(feed)["y"], Session(model, 1, exact=True).run(feed)[0])
        assert differs == bool(rules)


@pytest.mark.parametrize(
    "maker", ["Neg (x)", "Relu (x)", "Sigmoid (x)", "Clip (x, low)", "Exp (x)", "Clip (x)", "Add (e, one)"]
)
def test_wide_pairs_that_are_a_relu(maker: str) -> None:
    """A pair from 0 on is wrong where its operator has numbers below 0, which OpenVINO does not clip."""
    text = f"e = Erf (x) c = {maker} r = Identity (c) {pair('r', 'd')} y = Neg (d)"
    given = {"s": np.float32(1 / 1024), "z": np.uint16(0), "low": np.float32(0), "one": np.float32(1)}
    model = build_used(f"g (float[1, 8] x) => (float[1, 8] y) {{ {text} }}", given, opset=21, ir=10)
    feed = {"x": np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)}
    ours, theirs = Session(model, 1, exact=True).run(feed)[0], open_model(model, 1)(feed)["y"]
    (found,) = onnxfq.check(model, "openvino").findings
    assert found.rule == "wide-pair"
    assert (found.severity == "wrong") == (np.abs(ours - theirs).max() > 0.1)


@pytest.mark.parametrize("shape", [(1,), (4,), (8, 1), (1, 8, 4)], ids=str)
@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
def test_pairs_on_constants_in_floats(op: str, shape: tuple[int, ...]) -> None:
    """OpenVINO fails at some of them, and the rule refuses these alone."""
    text = f"{pair('x', 'd')} {pair('k', 'e')} y = {op} (d, e)"
    given = {"s": np.float32(0.1), "z": np.uint8(120), "k": np.ones(shape, np.float32)}
    model = build(f"g (float[1, 8, 4] x) => (float[1, 8, 4] y) {{ {text} }}", given)
    found = [one.rule for one in onnxfq.check(model, "openvino").findings if one.severity == "refused"]
    try:
        open_model(model, 1)
    except RuntimeLibraryError:
        assert found == ["rounded-constant"]
    else:
        assert not found


INTEGER_OPERATORS = {
    "QLinearAdd (q, s, z, q, s, z, t, u)": "wrapped",
    "QLinearAdd (q, s, z, q, s, z, t, v)": "",
    "QLinearAdd (q, s, z, n, s, v, t, u)": "wrapped",
    "QLinearMul (q, s, z, n, s, v, t, u)": "wrapped",
    "QLinearMul (q, s, z, n, s, v, r, v)": "",
    "QLinearConcat <axis = 1> (s, u, q, s, z)": "wrapped",
    "QLinearConcat <axis = 1> (s, z, q, s, z)": "",
    "QLinearAveragePool <kernel_shape = [2, 2]> (q, s, z, s, z)": "wrapped",
    "QLinearAveragePool <kernel_shape = [2, 2]> (p, s, u, s, z)": "",
    "QLinearGlobalAveragePool (q, s, z, s, z)": "operator",
    "QLinearLeakyRelu (q, s, z, s, z)": "operator",
    "QLinearLeakyRelu <alpha = 0.1> (q, s, z, s, z)": "wrapped",
    "QLinearLeakyRelu <alpha = 0.1> (p, s, u, s, z)": "",
    "QLinearSigmoid (q, s, z, s, u)": "",
}
"""Operator on integers -> the rule that speaks of it."""


@pytest.mark.parametrize("operator", INTEGER_OPERATORS)
def test_operators_on_integers(operator: str) -> None:
    """The rules say which operators on integers OpenVINO refuses, and which compute other numbers."""
    grid = {"s": np.float32(0.03), "t": np.float32(0.06), "z": np.uint8(60), "u": np.uint8(0)}
    given = {**grid, "v": np.uint8(120), "n": np.uint8([[[[0]]]]), "r": np.float32(0.3)}
    size = 1 if "Global" in operator else 7 if "Pool" in operator else 8
    *_, scale, zero = re.findall(r"\b[a-z]\b", operator)
    if "Concat" in operator:
        scale, zero = re.findall(r"\b[a-z]\b", operator)[:2]
    model = build_used(
        f"""g (float[1, 4, 8, 8] x) => (float[1, 4, {size}, {size}] y) {{
            q = QuantizeLinear (x, s, z) p = QuantizeLinear (x, s, u) o = com.microsoft.{operator}
            y = DequantizeLinear (o, {scale}, {zero}) }}""",
        given,
        **{"com.microsoft": 1},
    )
    values = np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)
    found = [one for one in onnxfq.check(model, "openvino").findings if one.severity != "warning"]
    rule = INTEGER_OPERATORS[operator]
    try:
        theirs = open_model(model, 1)({"x": values})["y"]
    except RuntimeLibraryError:
        assert [one.severity for one in found] == ["refused"] and rule == "operator"
        return
    ours = Session(model, 1).run({"x": values})[0]
    assert (np.abs(ours - theirs).max() > 0.5) == (rule == "wrapped")
    assert {one.rule for one in found} <= {rule}


def test_shared_zero_points_of_sums() -> None:
    """OpenVINO changes a zero point that a ReduceSum shares with another pair; the rule says so."""
    axes = {"axes": np.array([2, 3]), "so": np.float32(0.3)}
    feed = {"x": np.random.default_rng(0).normal(size=(1, 8, 8, 8)).astype(np.float32)}
    for zero, rules in (("z", {"shared-zero-point"}), ("zo", set())):
        model = one_operator("t = ReduceSum (d, axes) " + pair("t", "y", "so", zero), axes)
        assert (differ(model, feed, rules) > 0.31) == bool(rules)


def test_refusals_of_the_runtime() -> None:
    """What OpenVINO cannot read is one line with the operator; in a check it is a finding."""
    model = build("g (float[2] x) => (float[2] y) { y = mine.Odd (x) }", mine=1)
    with pytest.raises(
        RuntimeLibraryError, match=r"OpenVINO 20\S+ cannot read the model: .*mine\.Odd.*; use"
    ) as fault:
        open_model(model)
    assert "src/" not in str(fault.value)
    result = built(model)
    assert [found.rule for found in result.findings] == ["build"] and not result.passed
    run = open_model(build("g (float[2] x) => (float[2] y) { y = Relu (x) }"), 1)
    with pytest.raises(DataError, match="the feed has no input 'x'"):
        run({})
    with pytest.raises(RuntimeLibraryError, match="on this feed: .*; give data that fits"):
        run({"x": np.zeros((3, 3), np.float32)})


def test_simulations_are_refused() -> None:
    """A fake-quant model, which OpenVINO cannot read, is refused by a rule in the same breath."""
    staged = stage(two_branch(), "openvino-int8")
    model = onnxfq.insert_fake_quantize(staged.model, staged.plan, staged.encodings)
    with pytest.raises(RuntimeLibraryError, match="FakeQuantize"):
        open_model(model)
    found = onnxfq.check(model, "openvino").findings
    assert found and {(one.rule, one.severity) for one in found} == {("operator", "refused")}


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenVINO one line says what to install; the rules work."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    model = PLANTED["conv"][0]
    with pytest.raises(RuntimeLibraryError, match=r'pip install "onnxfq\[openvino\]"'):
        built(model)
    with pytest.raises(RuntimeLibraryError, match=r'pip install "onnxfq\[openvino\]"'):
        open_model(model)
    assert onnxfq.check(model, "openvino").passed


def test_a_stack_in_front_of_a_pair() -> None:
    """The rule on stacks of matrices goes when OpenVINO multiplies them as the pairs mean."""
    text = "p = Relu (x) h = MatMul (p, w) r = Relu (h) y = MatMul (r, v)"
    stacks = {"w": weights(4, 32, 32), "v": weights(4, 32, 32, seed=1)}
    proto = build(f"g (float[4,8,32] x) => (float[4,8,32] y) {{ {text} }}", stacks)
    feed = {"x": np.random.default_rng(0).normal(size=(4, 8, 32)).astype(np.float32)}
    for recipe, is_wrong in (("tensorrt-int8", True), ("openvino-int8", False)):
        made = plain_quantize(proto, [feed], recipe=recipe).qdq
        rules = {finding.rule for finding in onnxfq.check(made, "openvino").findings}
        assert ("stacked-weight" in rules) == is_wrong
        expected, found = Session(made, 1, exact=True).run(feed)[0], open_model(made, 1)(feed)["y"]
        noise = np.mean((np.asarray(found, np.float64) - expected) ** 2)
        assert (not noise < 0.05 * np.mean(np.square(expected))) == is_wrong


def test_local_functions_are_refused() -> None:
    """OpenVINO looks into no function of a model, as MXFP8 is written for TensorRT."""
    proto = build("g (float[N,64] x) => (float[N,64] y) { y = MatMul (x, w) }", {"w": weights(64, 64)})
    made = onnxfq.quantize(proto, [{"x": weights(4, 64)}], recipe="tensorrt-mxfp8").qdq
    assert {one.severity for one in onnxfq.check(made, "openvino").findings} >= {"refused"}
    with pytest.raises(RuntimeLibraryError, match="TRT_MXFP8"):
        open_model(made, 1)


def test_shapes_and_weights_in_a_file(tmp_path: Path) -> None:
    """Open inputs get the given shape, and a model with its weights in another file is compiled too."""
    model = one_operator(dequantized() + "y = Conv (d, w)", weight((8, 8, 3, 3)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64)
    options = BuildOptions({"x": (3, 8, 8, 8)})
    result = onnxfq.check(tmp_path / "m.onnx", "openvino", build=options)
    assert [(n.device, n.node, n.verdict) for n in result.engine] == [("CPU", "y", "low")]
    with pytest.raises(DataError, match="a shape is given for 'z', which the model does not take"):
        onnxfq.check(PLANTED["conv"][0], "openvino", build=BuildOptions({"z": (1,)}))


@pytest.mark.wide_sums
def test_commands(
    digits_model: Path, digit_images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Quantize, check with the build, and compare with OpenVINO on the command line."""
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", image=digit_images[8000:8008])
    model, data = str(digits_model), ["--data", "data.npz"]
    options = ["--recipe", "openvino-int8", "--repair", "off", "--quiet"]
    assert main(["quantize", model, *data, "-o", "m.onnx", *options]) == 0
    assert main(["check", "m.onnx", "--target", "openvino", "--build", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["op_type"]: (row["kept"], row["promised"]) for row in result["coverage"]} == {
        "Conv": (20, 20), "Add": (4, 4), "ReduceMean": (1, 1), "Gemm": (1, 1),
    }  # fmt: skip
    assert result["builder"].startswith("OpenVINO 20")
    assert main(["compare", "m.onnx", *data, "--candidate", "openvino", "--tolerance", "20"]) == 0
    assert "onnxruntime and openvino agree" in capsys.readouterr().out
    scores = []
    for runtime in ("onnxruntime", "openvino"):
        assert main(["evaluate", model, "m.onnx", *data, "--runtime", runtime, "--per-tensor", "--json"]) == 0
        scored = json.loads(capsys.readouterr().out)
        scores.append(scored["candidates"][0]["outputs"][0]["sqnr_db"])
        assert any("ran in openvino" in note for note in scored["notes"]) == (runtime == "openvino")
    assert scores[0] != scores[1]  # another runtime rounds differently
    np.testing.assert_allclose(scores[0], scores[1], atol=3)
    assert main(["evaluate", model, "m.onnx", *data, "--runtime", "openvin"]) == 1
    assert "unknown runtime 'openvin'; nearest: openvino" in capsys.readouterr().err


def test_an_attention_whose_queries_are_behind_a_concat_stays_in_float() -> None:
    """As with rotated halves: neither grid is right there, and one kernel has both products."""
    proto = build(
        """g (float[1,2,6,8] x, float[1,2,6,16] k) => (float[1,2,6,16] y) { n = Neg (x)
        q = Concat <axis = 3> (x, n) t = Transpose <perm = [0,1,3,2]> (k) [first] s = MatMul (q, t)
        h = Mul (s, half) p = Softmax (h) v = Exp (k) [second] o = MatMul (p, v)
        [last] y = MatMul (o, w) }""",
        {"w": weights(16, 16), "half": np.float32(0.5)},
    )
    feeds = [feed_for(proto, seed) for seed in range(8)]
    made = plain_quantize(proto, feeds, recipe="openvino-int8")
    why = {one.name: one.why for one in made.plan.skipped if one.kind == "node"}
    assert {name for name, text in why.items() if "behind a Concat otherwise" in text} == {"first", "second"}
    (row,) = onnxfq.check(made.qdq, "openvino", build=BuildOptions()).coverage
    assert (row.op_type, row.kept, row.promised) == ("MatMul", 1, 1)

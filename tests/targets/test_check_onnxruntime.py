"""`check --target onnxruntime`: rules and counts against sessions with default options and against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization
import pytest
from builders import build, conv_relu, feed_for, weights
from one_operator import dequantized, integers, one_operator, pair, weight
from ort_quantizer import MEASURED, by_ort

import onnxfq
from onnxfq.errors import DataError
from onnxfq.graph.body_reads import pair_moved_reads
from onnxfq.runtime.optimized_graph import optimize_graph
from onnxfq.runtime.session import Session
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.target import BuildOptions

STEP = np.float32(0.03)
CONV = dequantized() + "t = Conv (d, w) "
SQUARE, MATRIX, IMAGE = (8, 8, 3, 3), (64, 64), "1,8,8,8"
UNSIGNED = {"zo": np.uint8(0)}
Planted = tuple[onnx.ModelProto, str]


def planted() -> Iterator[tuple[str, Planted]]:
    """Yield (name, (network of one operator, reason for float; empty for 8 bits))."""
    square, gemm = weight(SQUARE), dequantized() + "t = Gemm <transB = 1> (d, w{}) "
    yield "conv", (one_operator(CONV + "{behind}", square), "")
    yield "relu", (one_operator(CONV + "r = Relu (t) " + pair("r", "y", "so", "zo"), square | UNSIGNED), "")
    signed = CONV + "r = Relu (t) " + pair("r", "y", "so", "zo")
    yield "signed relu", (one_operator(signed, square, dtype=np.int8), "the pair behind Relu 'r' has numbers")
    yield "output", (one_operator(CONV + "y = Identity (t)", square), "Identity 'y' reads its result 't'")
    yield "graph output", (one_operator(CONV.replace("t =", "y ="), square), "its result 'y' is an output")
    two = CONV + pair("t", "a", "so", "zo") + pair("t", "b", "s", "z") + "y = Add (a, b)"
    yield "two pairs", (one_operator(two, square), "2 pairs read its result 't'")
    yield "linear", (one_operator(dequantized(1) + "y = MatMul (d, w)", weight(MATRIX, 1), "8,64"), "")
    yield "gemm", (one_operator(gemm.format("") + "y = Identity (t)", weight(MATRIX), "8,64"), "")
    biased = weight(MATRIX) | {"b": weights(64)}
    yield "biased gemm", (one_operator(gemm.format(", b") + "{behind}", biased, "8,64"), "")
    open_gemm = one_operator(gemm.format(", b").replace("t =", "y ="), biased, "8,64")
    yield "biased gemm to an output", (open_gemm, "its result 'y' is an output in float")
    joined = dequantized(1) + "t = MatMul (d, w) y = Add (t, b)"
    product = weight(MATRIX, 1) | {"b": weights(64)}
    yield "linear with bias", (one_operator(joined, product, "2,8,64"), "with the sum behind it to a Gemm")
    yield "linear with bias and open batch", (one_operator(joined, product, "N,8,64"), "")
    whole = {"bq": np.arange(64, dtype=np.int32), "bs": np.full(64, STEP * STEP)}
    quantized = "b = DequantizeLinear <axis = 0> (bq, bs) " + joined
    yield "linear with int32 bias", (one_operator(quantized, weight(MATRIX, 1) | whole, "2,8,64"), "")
    for op in ("Add", "Mul", "Concat <axis = 1>"):
        yield op, (one_operator(f"t = {op} (d, e) {{behind}}", {}, IMAGE, IMAGE), "")
        shared = f"t = {op} (d, e) " + pair("t", "a", "so", "zo") + "u = Tanh (t) y = Sub (a, u)"
        reason = "Tanh 'u' reads its result 't'"
        yield f"{op} for two", (one_operator(shared, {}, IMAGE, IMAGE), reason)
    for op in ("Sigmoid", "Softmax", "LeakyRelu", "GlobalAveragePool", "AveragePool <kernel_shape = [2,2]>"):
        yield op, (one_operator(f"t = {op} (d) {{behind}}", {}), "")
    alone = dequantized() + "y = Conv (x, w)"
    yield "weight alone", (one_operator(alone, square), "dequantizes the weight before it multiplies")


PLANTED = dict(planted())


def built(model: onnx.ModelProto) -> CheckResult:
    """Return the check with the graph of a plain session."""
    return onnxfq.check(model, "onnxruntime", build=BuildOptions())


def rules(model: onnx.ModelProto) -> set[str]:
    """Return the rules that report something."""
    return {found.rule for found in onnxfq.check(model, "onnxruntime").findings} - {"saturation"}


@pytest.mark.skipif(not MEASURED, reason="the fusions are those of one release")
@pytest.mark.parametrize("name", PLANTED)
def test_what_runs_in_8_bits(name: str) -> None:
    """A plain session has the operator in 8 bits, or the check says what stands in the way."""
    model, reason = PLANTED[name]
    result = built(model)
    node = result.engine[0]
    assert node.device == "CPU" and node.verdict == ("float" if reason else "low")
    assert reason in node.why and (not reason) == (not node.why)
    said = [found.message for found in result.findings if found.rule == "engine" and found.node == node.node]
    assert len(said) == bool(reason) and all(reason in message for message in said)


def fails(model: onnx.ModelProto) -> bool:
    """Tell whether a session with default options fails to load or to run `model`."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        session.run(None, feed_for(model))
    except Exception:  # one class for each status code
        return True
    return False


@pytest.mark.skipif(not MEASURED, reason="the failures are those of one release")
def test_several_scales_fail_in_a_plain_session() -> None:
    """The rules refuse several scales of uint8 inputs and of stacked weights: a plain session fails."""
    channels = {"sc": np.linspace(0.02, 0.04, 8, dtype=np.float32), "zc": np.full(8, 128, np.uint8)}
    by_channel = "q = QuantizeLinear <axis = 1> (x, sc, zc) f = DequantizeLinear <axis = 1> (q, sc, zc) "
    several = one_operator(by_channel + dequantized() + "t = Conv (f, w) {behind}", weight(SQUARE) | channels)
    columns = {"w_q": integers(4, 64, 64), "ws": np.full(64, STEP), "wz": np.zeros(64, np.int8)}
    stack = one_operator(dequantized(2) + "y = MatMul (d, w)", columns, "4,8,64")
    plain = PLANTED["conv"][0]
    for model, expected in ((several, {"activation-scales"}), (stack, {"weight-scales"}), (plain, set())):
        assert rules(model) == expected
        assert fails(model) == bool(expected)


def saturated(model: onnx.ModelProto, name: str) -> int:
    """Return how often adding two products with 255 in int16 changes the sum, by NumPy."""
    numbers = next(t for t in model.graph.initializer if t.name == name)
    wide = onnx.numpy_helper.to_array(numbers).astype(np.int32)
    wide = wide.reshape(len(wide), -1) if wide.ndim == 2 else np.moveaxis(wide, 1, -1).reshape(len(wide), -1)
    sums = 255 * (wide[:, 0::2] + wide[:, 1::2])
    return int((np.clip(sums, -(1 << 15), (1 << 15) - 1) != sums).sum())


def test_saturation_is_counted() -> None:
    """Pairs of weights are those whose products pass 16 bits by NumPy; depthwise ones are left out."""
    for model in (
        one_operator(CONV + "{behind}", weight(SQUARE)),
        one_operator(dequantized() + "y = Gemm <transB = 1> (d, w)", weight(MATRIX), "8,64"),
    ):
        (found,) = onnxfq.check(model, "onnxruntime").findings
        assert (found.rule, found.severity) == ("saturation", "warning")
        count = saturated(model, "w_q")
        assert count and found.message.startswith(f"{count:,} of ")
    depthwise = dequantized() + "t = Conv <group = 8> (d, w) {behind}"
    assert not onnxfq.check(one_operator(depthwise, weight((8, 1, 3, 3))), "onnxruntime").findings


def test_the_way_out_of_saturation() -> None:
    """Weights of the named limits have no such pair, in a recipe as the message has it."""
    proto = build(
        "g (float[N,64] x) => (float[N,64] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }",
        {"w": weights(64, 64), "v": weights(64, 64, seed=1)},
    )
    feeds = [feed_for(proto, seed) for seed in range(3)]
    recipe = onnxfq.load_recipe("onnxruntime-int8")
    for limited, warned in ((recipe, True), (recipe.override(weights={"qtype": "int8[-64,64]"}), False)):
        qdq = onnxfq.quantize(proto, feeds, recipe=limited).qdq
        found = {one.rule for one in onnxfq.check(qdq, "onnxruntime").findings}
        assert found == ({"saturation"} if warned else set())
        assert Session(qdq, 1).run(feeds[0])[0].shape == (4, 64)


def test_models_that_a_session_refuses() -> None:
    """A model that a plain session cannot load is a finding; a shape that does not fit is an error."""
    model = build("g (float[2] x) => (float[2] y) { y = mine.Odd (x) }", mine=1)
    result = built(model)
    assert [(found.rule, found.severity) for found in result.findings] == [("session", "refused")]
    assert result.builder == f"ONNX Runtime {onnxruntime.__version__}"
    with pytest.raises(DataError, match="a shape is given for 'z'"):
        onnxfq.check(PLANTED["conv"][0], "onnxruntime", build=BuildOptions({"z": (1,)}))


def test_peers_model(tmp_path: Path) -> None:
    """Every pair of onnxruntime's own quantizer is fused, and the count says so."""
    proto = conv_relu()
    options = {"activation_type": onnxruntime.quantization.QuantType.QUInt8, "per_channel": True}
    quantized = by_ort(proto, [feed_for(proto, seed) for seed in range(3)], tmp_path, **options)
    assert str(built(quantized).coverage[0]) == "Conv 1/1 low"


@pytest.mark.parametrize("recipe", ["onnxruntime-int8", "tensorrt-int8", "mxint8"])
def test_a_model_is_checked_for_its_own_target(recipe: str) -> None:
    """Its metadata name the target. For simulations, and files of other tools, TensorRT's rules count."""
    model = conv_relu()
    written = onnxfq.quantize(model, [feed_for(model)], recipe=recipe).qdq
    want = recipe.removesuffix("-int8") if "-" in recipe else "tensorrt"
    assert onnxfq.check(written).target == want
    assert onnxfq.check(written, "openvino").target == "openvino"
    del written.metadata_props[:]
    assert onnxfq.check(written).target == "tensorrt"


def test_products_in_float_between_pairs(tmp_path: Path) -> None:
    """ONNX Runtime's own quantizer leaves a product in float between pairs, and the session rounds it."""
    proto = build(
        """g (float[N,8,6,6] x) => (float[N,8,4,4] y) {
            [first] a = Conv (x, w0) [mid] b = Conv <pads = [1,1,1,1]> (a, w1, c)
            [last] y = Conv <pads = [1,1,1,1]> (b, w2) }""",
        {
            "w0": weights(8, 8, 3, 3), "w1": weights(8, 8, 3, 3, seed=1), "c": weights(8),
            "w2": weights(8, 8, 3, 3, seed=2),
        },
    )  # fmt: skip
    theirs = by_ort(proto, [feed_for(proto)], tmp_path, nodes_to_exclude=["mid"])
    found = [one for one in onnxfq.check(theirs, "onnxruntime").findings if one.rule == "rounded-product"]
    assert [(one.node, one.severity) for one in found] == [("mid", "warning")]
    kinds = [node.op_type for node in optimize_graph(theirs).graph.node]
    assert kinds.count("QLinearConv") == 3 and "Conv" not in kinds


def test_files_that_end_the_process_are_refused() -> None:
    """A body that reads a moved tensor behind a pair is refused; with a second pair it is not."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[2,4] x, bool c) => (float[4,2] y)
        <float s = {0.1}, uint8 z = {3}>
        { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) t = Transpose (d)
          y = If (c) <then_branch = g1 () => (float[4,2] a) { a = Neg (t) },
                      else_branch = g2 () => (float[4,2] b) { b = Abs (t) }> }"""
    )
    for proto, count in ((model, 1), (pair_moved_reads(model), 0)):
        found = onnxfq.check(proto, "onnxruntime", build=False).findings
        assert [one.rule for one in found if one.severity == "refused"] == ["moved-read"] * count

"""Files whose quantizers have other forms: QONNX, fewer bits, each run's range, bodies, a scale a channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import Arrays, build, scalars
from diagnosed_networks import network
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from ort_quantizer import by_ort

from onnxfq import diagnose, register_custom_ops
from onnxfq.diagnosis.reading.switched_form import switch_form
from onnxfq.errors import ModelError
from onnxfq.graph.io.load import standard_form
from onnxfq.quantized.qonnx import pairs_of_qonnx
from onnxfq.quantized.stored_casts import pairs_of_casts


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Return values of a normal distribution, float32."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


X = normal(16, 8, seed=7)
DATA = [{"x": X[at : at + 1]} for at in range(16)]
W = normal(8, 6, seed=8, scale=0.3)


def run(proto: onnx.ModelProto, feed: Arrays) -> np.ndarray:
    """Return the first output, as ONNX Runtime gives it without fusions.

    With them 1.24 gives another product of int8 and a weight that a Clip limits: 749 for 1.6.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    register_custom_ops(options)
    return np.asarray(onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feed)[0])


def quant(values: np.ndarray, scale: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return what QONNX's Quant gives: https://github.com/fastmachinelearning/qonnx, with zero point 0."""
    return (np.clip(np.rint(values / scale), low, high) * scale).astype(np.float32)


def qonnx_model(bits: int = 4, narrow: int = 1, scale: float = 1.0, **attributes: str) -> onnx.ModelProto:
    """Return a product of an activation of `bits` and a weight of 4, as Brevitas writes them."""
    mode = attributes.get("mode", "ROUND")
    return build(
        f"""g (float[N,8] x) => (float[N,6] y) {{
            [qx] a = qonnx.custom_op.general.Quant
                <narrow = {narrow}, signed = 1, rounding_mode = "{mode}"> (x, s, zero, bits)
            [qw] v = qonnx.custom_op.general.Quant <narrow = 1, signed = 1> (w, ws, zero, four)
            m = MatMul (a, v)
            [qb] c = qonnx.custom_op.general.Quant <narrow = 0, signed = 1> (b, bs, zero, many)
            y = Add (m, c) }}""",
        {
            **scalars(
                np.float32, s=scale * 3 / (2 ** (bits - 1) - 1), zero=0, bits=bits, four=4, bs=1e-4, many=24
            ),
            "w": W,
            "ws": (np.abs(W).max(0, keepdims=True) / 7).astype(np.float32),
            "b": normal(6, seed=9),
        },
        opset=11,
        **{"qonnx.custom_op.general": 1},
    )


@pytest.mark.parametrize(("bits", "narrow"), [(8, 0), (8, 1), (4, 0), (4, 1), (2, 1)])
def test_qonnx_is_read_as_its_definition_says(bits: int, narrow: int) -> None:
    """Pairs in place of Quant compute QONNX's formula: equal but for the order of sums, 1e-5."""
    source = qonnx_model(bits, narrow)
    pairs = pairs_of_qonnx(source, "m")
    stored = {t.name: numpy_helper.to_array(t) for t in qonnx_model(bits, narrow).graph.initializer}
    low, high = -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    expected = quant(X, stored["s"], low, high) @ quant(W, stored["ws"], -7, 7)
    expected += quant(stored["b"], stored["bs"], -(2**23), 2**23 - 1)
    np.testing.assert_allclose(run(pairs, {"x": X}), expected, rtol=1e-5, atol=1e-5)
    standard_form(pairs)
    form = switch_form(pairs, "m")
    np.testing.assert_allclose(run(form.proto, {"x": X}), expected, rtol=1e-5, atol=1e-5)
    (quantizer,) = form.activations
    assert quantizer.grid.codes == (low, high)


def test_a_wide_range_of_few_bits_is_named() -> None:
    """A range of 4 bits that is 6 times too wide is a cause; one that fits is none."""
    assert not diagnose(qonnx_model(8), data=DATA).causes
    first = diagnose(qonnx_model(4, scale=6.0), data=DATA).causes[0]
    assert (first.kind, first.tensor, first.node) == ("preprocessing", "x", "qx")
    assert (first.after or 0.0) > (first.before or 0.0) + 10


@pytest.mark.parametrize("change", ["mode", "bits", "Trunc"])
def test_what_a_pair_cannot_is_refused(change: str) -> None:
    """Another rounding, wide activations and other quantizers of QONNX are one line with the way out."""
    proto = qonnx_model(**{"mode": {"mode": "FLOOR"}, "bits": {"bits": 12}}.get(change, {}))  # type: ignore[arg-type]
    if change == "Trunc":
        proto.graph.node[0].op_type = "Trunc"
    with pytest.raises(ModelError, match="'qx' of QONNX .*export_onnx_qcdq"):
        diagnose(proto)


def dynamic(tmp_path: Path, *, outlier: float = 1.0, per_channel: bool = False) -> onnx.ModelProto:
    """Return a Conv and a MatMul as onnxruntime quantizes them dynamically; `outlier` enlarges a channel."""
    last = normal(64, 6, seed=3)
    last[:, 2] *= outlier
    model = build(
        """g (float[N,2,4,4] x) => (float[N,6] y) {
            [conv] c = Conv <pads = [1,1,1,1]> (x, w, b) r = Relu (c) f = Flatten (r)
            [last] y = MatMul (f, v) }""",
        {"w": normal(4, 2, 3, 3, scale=0.3), "b": normal(4), "v": last},
    )
    onnx.save(model, tmp_path / "m.onnx")
    quantize_dynamic(
        tmp_path / "m.onnx", tmp_path / "q.onnx", weight_type=QuantType.QInt8, per_channel=per_channel
    )
    return onnx.load(tmp_path / "q.onnx")


def whole_bias(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Add the bias of the Conv to its integers, as older quantizers of onnxruntime write it."""
    nodes = proto.graph.node
    conv = next(node for node in nodes if node.op_type == "ConvInteger")
    cast = next(node for node in nodes if conv.output[0] in node.input)
    scaled = next(node for node in nodes if cast.output[0] in node.input)
    add = next(node for node in nodes if node.op_type == "Add" and scaled.output[0] in node.input)
    reshaped = next(name for name in add.input if name != scaled.output[0])
    reshape = next(node for node in nodes if reshaped in node.output)
    factor = next(name for name in scaled.input if name != cast.output[0])
    steps = build(
        "g (float[1] b, float[1] factor) => (float[1] i) { d = Div (b, factor) e = Floor (d)"
        " i = Cast <to = 6> (e) }"
    ).graph.node
    steps[0].input[:] = [reshape.input[0], factor]
    reshape.input[0] = "i"
    scaled.output[0], add.output[0], total = add.output[0], "total", conv.output[0]
    add.input[:], cast.input[0] = [total, reshaped], "total"
    multiply = next(node for node in nodes if factor in node.output)
    order = [n for n in nodes if n not in (conv, cast, scaled, add, reshape, multiply)]
    place = next(at for at, n in enumerate(order) if n.op_type == "DynamicQuantizeLinear") + 1
    order[place:place] = [multiply, *steps, reshape, conv, add, cast, scaled]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
    del nodes[:]
    nodes.extend(copies)
    onnx.checker.check_model(proto)
    return proto


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.wide_sums
def test_dynamic_products_are_read(tmp_path: Path, is_old: bool, per_channel: bool) -> None:
    """The float form computes what the file does but for the rounding of data and bias, 25 dB.

    What each run sets is said; the weights are read.
    """
    proto = dynamic(tmp_path, per_channel=per_channel)
    proto = whole_bias(proto) if is_old else proto
    feeds = [{"x": normal(1, 2, 4, 4, seed=seed)} for seed in range(8)]
    standard_form(proto)
    form = switch_form(proto, "m")
    assert len(form.constants) == 2
    for feed in feeds:
        want, have = run(proto, feed), run(form.proto, feed)
        assert 10 * np.log10((want**2).sum() / ((want - have) ** 2).sum()) > 25
    result = diagnose(proto, reference=tmp_path / "m.onnx", data=feeds)
    assert not result.causes
    assert result.not_looked_at == ("range that each run sets (DynamicQuantizeLinear): 2",)
    assert "not looked at: range" in result.table()


def test_a_whole_product_of_a_table(tmp_path: Path) -> None:
    """Numbers that a Gather takes from a stored table have the scale of the table, and no run sets it."""
    table = {"t": normal(20, 16), "w": normal(16, 6, scale=0.3, seed=1)}
    model = build("g (int64[N,5] x) => (float[N,5,6] y) { e = Gather (t, x) y = MatMul (e, w) }", table)
    onnx.save(model, tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", weight_type=QuantType.QInt8)
    feeds = [{"x": np.arange(at, at + 5, dtype=np.int64)[None]} for at in range(15)]
    assert not diagnose(tmp_path / "q.onnx", reference=model, data=feeds).causes


def test_a_channel_that_sets_the_scale_of_a_dynamic_product_is_named(tmp_path: Path) -> None:
    """One channel that is 100 times the others is named, by its place and by its weight."""
    (cause,) = diagnose(dynamic(tmp_path, outlier=100.0)).causes
    assert (cause.kind, cause.tensor) == ("channel_spread", "v_quantized")
    assert "channel 2 of 6" in cause.evidence and "again" in cause.repair


PAIR = "q{0} = QuantizeLinear ({1}, {2}) d{0} = DequantizeLinear (q{0}, {2})"


@pytest.mark.parametrize("form", ["If", "Loop", "Scan", "channels", "computed", "negative"])
def test_what_is_passed_over_is_said(form: str) -> None:
    """A pair in a body, or whose scale is several, computed or not positive, is listed and hides no cause."""
    pair = PAIR.format("r", "{}", "t, tz")
    behind = {
        "If": "f = ReduceMax <keepdims = 0> (r) some = Cast <to = 9> (f) "
        "y = If (some) <then_branch = t () => (float[N,6] i) {"
        f"{pair.format('r')} i = Identity (dr) }}, "
        "else_branch = e () => (float[N,6] j) { j = Identity (r) }>",
        "Loop": "y = Loop (two, yes, r) <body = b (int64 n, bool c, float[N,6] v) => (bool k, float[N,6] i) {"
        f"k = Identity (c) {pair.format('v')} i = Identity (dr) }}>",
        "Scan": "y = Scan <num_scan_inputs = 1, body = b (float[6] v) => (float[6] i) {"
        f"{pair.format('v')} i = Identity (dr) }}> (r)",
        "channels": "qr = QuantizeLinear (r, ts, tzs) y = DequantizeLinear (qr, ts, tzs)",
        "computed": "k = ReduceMax <keepdims = 0> (r) h = Mul (k, t) qr = QuantizeLinear (r, h, tz)"
        " y = DequantizeLinear (qr, h, tz)",
    }.get(form, "qr = QuantizeLinear (r, odd, sz) y = DequantizeLinear (qr, odd, sz)")
    proto = build(
        f"""g (float[N,8] x) => (float[N,6] y) {{
            {PAIR.format("x", "x", "s, sz")} m = MatMul (dx, w) r = Relu (m) {behind} }}""",
        {
            **scalars(np.float32, s=30 * 3 / 127, t=0.02, odd=-0.02),
            "sz": np.int8(0),
            "tz": np.uint8(0),
            "two": np.int64(2),
            "w": W,
            "ts": np.full(6, 0.02, np.float32),
            "tzs": np.zeros(6, np.uint8),
            "yes": np.asarray(True),
        },
    )
    result = diagnose(proto, data=DATA)
    assert [(cause.kind, cause.tensor) for cause in result.causes[:1]] == [("preprocessing", "x")]
    assert len(result.not_looked_at) == 1, result.not_looked_at


def test_activations_of_float8_are_read() -> None:
    """A pair whose scale is 30 times as large as the values need loses the small ones to 0, and is named."""
    zero = helper.make_tensor("z", onnx.TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True)
    proto = build(
        f"g (float[N,8] x) => (float[N,6] y) {{ {PAIR.format('x', 'x', 's, z')} y = MatMul (dx, w) }}",
        {"s": np.float32(30.0), "w": W},
        opset=21,
    )
    proto.graph.initializer.append(zero)
    (cause,) = diagnose(proto, data=DATA).causes
    assert cause.tensor == "x" and (cause.after or 0.0) > (cause.before or 0.0) + 3


def test_a_norm_between_pairs_is_no_fault(tmp_path: Path) -> None:
    """ONNX Runtime's quantizer leaves a norm behind a convolution without a bias, and takes its Relu away."""
    net = network("conv")
    feeds = net.feeds(16, seed=1)
    made = by_ort(net.float_model, feeds, tmp_path, activation_type=QuantType.QUInt8)
    assert "BatchNormalization" in [node.op_type for node in made.graph.node]
    assert "Relu" not in [node.op_type for node in made.graph.node]
    result = diagnose(made, data=feeds)
    assert result.verdict.startswith("no fault found"), result.verdict


def test_a_file_of_passed_over_quantizers_is_not_called_sound() -> None:
    """Where every quantizer is passed over, the verdict says that nothing was looked at."""
    proto = build(
        "g (float[N,8] x) => (float[N,8] y) { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }",
        {"s": np.full(8, 0.02, np.float32), "z": np.zeros(8, np.int8)},
    )
    assert diagnose(proto, data=DATA).verdict.startswith("nothing was looked at")


@pytest.mark.parametrize("scales", [(6,), (1, 6), ()])
def test_weights_behind_a_cast_and_a_mul_are_read_as_pairs(scales: tuple[int, ...]) -> None:
    """A stored weight that Cast and Mul make floats becomes DequantizeLinear, with the same result."""
    scale = np.asarray(
        np.abs(W).max(0).reshape(scales) / 127 if scales else np.abs(W).max() / 127, np.float32
    )
    proto = build(
        "g (float[N,8] x) => (float[N,6] y) { c = Cast <to = 1> (q) w = Mul (c, s) y = MatMul (x, w) }",
        {"q": np.rint(W / scale).astype(np.int8), "s": scale},
        opset=11,
    )
    pairs = pairs_of_casts(proto, "m")
    assert [node.op_type for node in pairs.graph.node] == ["DequantizeLinear", "MatMul"]
    for feed in DATA[:2]:
        np.testing.assert_allclose(run(pairs, feed), run(proto, feed), rtol=1e-6)  # the order of sums
    result = diagnose(proto, data=DATA)
    assert result.quantizers == 1 and result.verdict.startswith("no fault found")

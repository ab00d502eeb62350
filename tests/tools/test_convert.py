"""`convert`: what onnxruntime's own quantizers write becomes what TensorRT takes."""

from __future__ import annotations

import importlib
import itertools
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, conv_relu, feed_for, gemm, linear, qdq_of, scalars, stage, weights
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import dequantize
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from ort_quantizer import by_ort

from onnxfq.cli.main import main
from onnxfq.errors import DataError, ModelError
from onnxfq.graph.external import sizes
from onnxfq.graph.io.load import load
from onnxfq.graph.stored_grid import grid_of
from onnxfq.quantized.float_form import Unfolding
from onnxfq.quantized.operators import HANDLERS
from onnxfq.runtime.session import Session
from onnxfq.stages.evaluate import evaluate
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.tools.check import check
from onnxfq.tools.convert import Conversion, convert

MODELS = ["conv_relu", "two_branch", "downsample", "shared_weight", "gemm", "attention", "left_constant"]
FOLDER = os.environ.get("ONNXFQ_MODELS", "")
TURBO = pytest.mark.filterwarnings("ignore")  # onnxruntime's quantizer is not under test


def feeds_of(proto: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    """Return four random feeds."""
    return [feed_for(proto, seed) for seed in range(4)]


def static(proto: onnx.ModelProto, folder: Path, form: str = "QDQ", **options: object) -> onnx.ModelProto:
    """Return what onnxruntime's quantize_static makes of `proto`: uint8 activations with zero points."""
    form_of = {"quant_format": QuantFormat[form], "activation_type": QuantType.QUInt8}
    return by_ort(proto, feeds_of(proto), folder, **form_of, **options)


def converted(source: onnx.ModelProto, proto: onnx.ModelProto) -> Conversion:
    """Convert `source`, made of `proto`, with data."""
    return convert(source, data=feeds_of(proto))


def cosine(result: Conversion) -> float:
    """Return the cosine of the first output with the source's."""
    assert result.evaluation is not None
    return result.evaluation.candidates[0].outputs[0].cosine


@pytest.mark.grid
@TURBO
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.wide_sums
def test_static_models(model, form, per_channel, tmp_path: Path):
    """The rules refuse the source and find nothing in the result, which quantizes the same operators.

    0.999: the source has 8 bits for [min, max], the result for [-amax, amax], with steps up to twice as wide.
    """
    proto = BUILDERS[model]()
    source = static(proto, tmp_path, form, per_channel=per_channel)
    assert not check(source).passed
    result = converted(source, proto)
    assert check(result.qdq).passed, check(result.qdq).table()
    assert all(row.quantized == row.total for row in result.plan.coverage())
    assert cosine(result) > 0.999
    assert not {t.data_type for t in result.qdq.graph.initializer} & {TensorProto.UINT8, TensorProto.INT32}


@pytest.mark.sample
def test_float_weights_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float weights that no message can hold wait in a file; the written model is the same."""
    proto = linear(64, 64)
    source, data = tmp_path / "source.onnx", feeds_of(proto)
    onnx.save(static(proto, tmp_path), source)
    plain = convert(source, data=data)
    # The source and the result fit, the float form between them does not.
    for limit, value in (("LIMIT", 2 * sizes.weight_bytes(plain.qdq)), ("IN_MEMORY", 0), ("SMALL", 8)):
        monkeypatch.setattr(sizes, limit, value)
    result = convert(source, tmp_path / "large.onnx", data=data)
    monkeypatch.undo()
    assert plain.scratch is None and result.scratch is not None
    assert onnx.load(tmp_path / "large.onnx").graph == plain.qdq.graph
    assert result.evaluation == plain.evaluation


@pytest.mark.grid
@TURBO
@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("model", ["two_branch", "downsample", "attention", "gemm"])
def test_tensorrt_takes_the_result(model, form, tmp_path: Path):
    """TensorRT for RTX refuses the source and runs every quantized node of the result in int8."""
    proto = BUILDERS[model]()
    source = static(proto, tmp_path, form)
    before = check(source, build=BuildOptions())
    assert {f.severity for f in before.findings} >= {"refused"} and not before.engine
    after = check(convert(source).qdq, build=BuildOptions())
    assert after.passed and all(row.kept == row.promised for row in after.coverage), after.table()


REAL = {
    "s01_mnist_cnn/mnist_op8.onnx": 17,
    "s02_resnet20_cifar10/resnet20_op13_bn.onnx": 17,
    "s04_ultraface/ultraface_rfb320_op9.onnx": 13,
    "s09_super_resolution/espcn_x3_op10.onnx": 17,
}
"""Trained networks, and the opset to which they are raised: onnxruntime quantizes per channel from 13 on."""


def real_model(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Return a trained network at the opset of `REAL`, and six feeds."""
    monkeypatch.syspath_prepend(FOLDER)
    folder, _, name = file.partition("/")
    feeds = list(itertools.islice(importlib.import_module("score").feeds(folder, name), 6))
    return onnx.version_converter.convert_version(onnx.load(Path(FOLDER) / file), REAL[file]), feeds


@pytest.mark.grid
@TURBO
@pytest.mark.skipif(not FOLDER, reason="ONNXFQ_MODELS names no folder of models")
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("file", REAL)
def test_real_models(file: str, per_channel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What onnxruntime quantized gives the source's outputs after, with every convolution quantized.

    The outputs of resnet20 are 0.998 of float's in the source itself, and the result adds noise. It must lie
    as near to float as the source, within 0.5 dB.
    """
    proto, feeds = real_model(file, monkeypatch)
    source = by_ort(proto, feeds, tmp_path, per_channel=per_channel)
    result = convert(source, data=feeds)
    if "resnet20" in file:
        scores = evaluate(proto, {"source": source, "result": result.qdq}, feeds).candidates
        before, after = (one.outputs[0].sqnr_db for one in scores)
        assert after >= before - 0.5
    else:
        assert cosine(result) > 0.999
    assert all(row.quantized == row.total for row in result.plan.coverage() if row.op_type == "Conv")


@TURBO
@pytest.mark.skipif(not FOLDER, reason="ONNXFQ_MODELS names no folder of models")
@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
@pytest.mark.parametrize("file", REAL)
def test_real_models_build(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT for RTX refuses what onnxruntime quantized, and keeps the result in low precision."""
    proto, feeds = real_model(file, monkeypatch)
    source = by_ort(proto, feeds, tmp_path, per_channel=True)
    assert not check(source, build=BuildOptions()).passed
    built = check(convert(source, data=feeds).qdq, build=BuildOptions())
    assert built.passed and built.coverage
    rows = [row for row in built.coverage if row.op_type != "Add (residual)"]  # some are added in float
    assert rows and all(row.kept == row.promised for row in rows), built.table()


@TURBO
def test_weights_and_biases(tmp_path: Path):
    """Symmetric int8 weights are kept number for number; an int32 bias is the float one to its own step."""
    proto = conv_relu()
    source = static(proto, tmp_path, per_channel=True)
    before = {t.name: numpy_helper.to_array(t) for t in source.graph.initializer}
    result = convert(source)
    after = {t.name: numpy_helper.to_array(t) for t in result.qdq.graph.initializer}
    (codes,) = [v for v in after.values() if v.dtype == np.int8 and v.ndim == 4]
    np.testing.assert_array_equal(codes, before["w_quantized"])
    (bias,) = [v for name, v in after.items() if v.shape == (4,) and name.startswith("b")]
    step = before["b_quantized_scale"]
    np.testing.assert_allclose(bias, numpy_helper.to_array(proto.graph.initializer[1]), atol=step.max())
    assert result.changes["weight kept on the grid of the source"] == 1
    assert result.changes["int32 constant, such as a bias, made float"] == 1


def test_two_pairs_in_a_row() -> None:
    """Both limit values: the Clip of one is the input of the Clip of the other, and data may reach either."""
    text = """g (float[N,16] x) => (float[N,8] y) {
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) r = QuantizeLinear (d, t, u)
        e = DequantizeLinear (r, t, u) w = DequantizeLinear (i, t, z) y = MatMul (e, w) }"""
    ends = scalars(np.float32, s=0.03, t=0.01) | scalars(np.int8, z=0) | scalars(np.uint8, u=128)
    proto = build(text, ends | {"i": np.random.default_rng(0).integers(-99, 99, (16, 8)).astype(np.int8)})
    for scale in (1.0, 4.0):  # values that the second alone limits, and both
        feeds = [{"x": feed["x"] * np.float32(scale)} for feed in feeds_of(proto)]
        result = convert(proto, data=feeds)
        assert check(result.qdq).passed and cosine(result) > 0.999


@TURBO
def test_removed_activations_come_back(tmp_path: Path):
    """A Relu that onnxruntime removes in front of a pair whose range begins at 0 comes back as a Clip."""
    source = static(conv_relu(), tmp_path)
    assert "Relu" not in {node.op_type for node in source.graph.node}
    result = converted(source, conv_relu())
    assert "Clip" in {node.op_type for node in result.qdq.graph.node}
    x = feed_for(conv_relu(), 7)["x"] * 3
    assert Session(result.qdq, 1).run({"x": x})[0].min() >= 0


@TURBO
@pytest.mark.parametrize("model", ["conv_relu", "gemm", "attention"])
def test_dynamic_models(model, tmp_path: Path):
    """ConvInteger and MatMulInteger become static with data; without, one line says why not."""
    proto = BUILDERS[model]()
    onnx.save(proto, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    source = onnx.load(tmp_path / "dynamic.onnx")
    result = converted(source, proto)
    assert check(result.qdq).passed and cosine(result) > 0.999
    assert result.changes["activation observed in the data, and made static"] >= 1
    with pytest.raises(DataError, match="give data to calibrate them"):
        convert(source)


@pytest.mark.grid
@TURBO
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
def test_four_bits(form, symmetric):
    """MatMulNBits and blocked uint4 or int4 become blocked int4 weights with their block size.

    0.995: 4 bits with zero points have half a bit more than the 4 without.
    """
    proto = build(
        "g (float[N,256] x) => (float[N,64] y) { [mm] y = MatMul (x, w) }",
        {"w": weights(256, 64)},
        opset=21,
        ir=10,
    )
    quantizer = MatMulNBitsQuantizer(
        proto, block_size=64, is_symmetric=symmetric, quant_format=QuantFormat[form]
    )
    quantizer.process()
    source = quantizer.model.model
    result = converted(source, proto)
    assert check(result.qdq).passed and cosine(result) > 0.995
    (node,) = [n for n in result.qdq.graph.node if n.op_type == "DequantizeLinear"]
    block = {a.name: a.i for a in node.attribute}["block_size"]
    given_blocks = {a.name: a.i for n in source.graph.node for a in n.attribute if a.name == "block_size"}
    assert block == given_blocks["block_size"]
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 1/1"]


def test_our_own_models_change_nothing():
    """A Q/DQ model that TensorRT takes already computes the same after convert, to the bit."""
    staged = stage(gemm())
    source = qdq_of(staged)
    result = convert(source)
    assert check(result.qdq).passed
    expected, got = (Session(p, 1, exact=True).run(staged.feed)[0] for p in (source, result.qdq))
    np.testing.assert_array_equal(expected, got)


def test_ranges_go_through_what_only_moves():
    """A pair in front of MaxPool, Reshape and Transpose is the range of what they give as well."""
    source = build(
        """g (float[2,4,4,4] x) => (float[4,6] y) {
            [xq] q = QuantizeLinear (x, s, z)
            [xdq] d = DequantizeLinear (q, s, z)
            [pool] p = MaxPool <kernel_shape = [4,2]> (d)
            [turn] t = Transpose <perm = [1,0,2,3]> (p)
            [flat] f = Reshape (t, shape)
            [wdq] k = DequantizeLinear (w, ws, wz)
            [mm] y = MatMul (f, k) }""",
        {
            **scalars(np.float32, s=0.1, ws=0.02),
            "z": np.uint8(128),
            "wz": np.int8(0),
            "shape": np.asarray([4, 6], np.int64),
            "w": np.arange(36, dtype=np.int8).reshape(6, 6),
        },
    )
    result = convert(source)
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 1/1"]
    assert check(result.qdq).passed
    scale = {t.name: numpy_helper.to_array(t) for t in result.qdq.graph.initializer}["f/scale"]
    np.testing.assert_allclose(scale, 0.1, rtol=1e-6)  # the source's own: -12.8 is the lowest number


def test_doubled_names_and_quantized_inputs():
    """Equal node names become unique; an input of uint8 is made real by arithmetic."""
    source = build(
        """g (uint8[4,8] q) => (float[4,6] y) {
            [same] x = DequantizeLinear (q, s, z)
            [same] k = DequantizeLinear (w, ws, wz)
            [same] y = MatMul (x, k) }""",
        {
            **scalars(np.float32, s=0.1, ws=0.02),
            "z": np.uint8(128),
            "wz": np.int8(0),
            "w": np.arange(48, dtype=np.int8).reshape(8, 6),
        },
    )
    result = convert(source)
    names = [node.name for node in result.qdq.graph.node]
    assert len(set(names)) == len(names) and check(result.qdq).passed
    q = np.random.default_rng(0).integers(0, 256, (4, 8)).astype(np.uint8)
    got = Session(result.qdq, 1).run({"q": q})[0]
    expected = (
        (q.astype(np.float32) - 128) * np.float32(0.1) @ (np.arange(48).reshape(8, 6) * np.float32(0.02))
    )
    # The range [-12.8, 12.7] has the scale 0.1, as in the source.
    np.testing.assert_allclose(got, expected, atol=8 * 0.5 * 0.1 * 0.94)  # half a step for each of 8 products


def test_bodies_read_real_numbers():
    """A tensor that an If reads from outside is there under its name."""
    source = build(
        """g (float[4,8] x, bool c) => (float[4,6] y) {
            [xq] q = QuantizeLinear (x, s, z)
            [xdq] d = DequantizeLinear (q, s, z)
            [wdq] k = DequantizeLinear (w, ws, wz)
            [mm] m = MatMul (d, k)
            [if] y = If (c) <
                then_branch = yes () => (float[4,6] t) { [add] t = Add (m, m) },
                else_branch = no () => (float[4,6] e) {
                    [max] r = ReduceMax <keepdims = 1> (d)
                    [sub] e = Sub (m, r) }> }""",
        {
            **scalars(np.float32, s=0.1, ws=0.02),
            **scalars(np.int8, z=3, wz=0),
            "w": np.arange(48, dtype=np.int8).reshape(8, 6),
        },
    )
    result = convert(source)
    onnx.checker.check_model(result.qdq, full_check=True)
    for c in (True, False):
        feed = {"x": feed_for(linear(8, 6))["x"], "c": np.asarray(c)}
        expected, got = (Session(p, 1).run(feed)[0] for p in (source, result.qdq))
        np.testing.assert_allclose(got, expected, atol=0.6)


REFUSED = {
    "float": (linear(8, 6), "the given model is not quantized; quantize it with `onnxfq quantize`"),
    "unknown operator": (
        build(
            """g (float[4] x) => (float[4] y) {
                [q] q = QuantizeLinear (x, s)
                [odd] o = com.microsoft.QLinearOdd (q)
                [d] y = DequantizeLinear (o, s) }""",
            {"s": np.float32(1)},
            **{"com.microsoft": 1},
        ),
        "QLinearOdd 'odd' has no known float form",
    ),
    "dynamic output": (
        build(
            """g (float[4] x) => (uint8[4] y, float s, uint8 z) {
                [q] y, s, z = DynamicQuantizeLinear (x) }"""
        ),
        "output 'y' has a scale of its data",
    ),
    "computed scale": (
        build(
            """g (float[4] x, float s) => (float[4] y) { [q] q = QuantizeLinear (x, s)
                i = Identity (q) [d] y = DequantizeLinear (i, s) }"""
        ),
        "QuantizeLinear 'q' computes its parameter 's'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted(case):
    """One line with the node, what is wrong and the remedy."""
    proto, words = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        convert(proto)
    assert words in str(caught.value)


@TURBO
def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """`convert` tells what it changed, how often, and what that cost."""
    source = static(conv_relu(), tmp_path)
    onnx.save(source, tmp_path / "source.onnx")
    np.savez(tmp_path / "data.npz", x=feed_for(conv_relu(), count=40)["x"])
    line = (
        f"convert {tmp_path}/source.onnx -o {tmp_path}/out.onnx --target tensorrt --data {tmp_path}/data.npz"
    )
    assert main(line.split()) == 0
    printed = capfd.readouterr().out
    assert "changed    1 x int32 constant, such as a bias, made float" in printed
    assert "against the source, " in printed
    assert main(f"check {tmp_path}/out.onnx".split()) == 0


@given(
    rows=st.integers(1, 4),
    k=st.integers(1, 9),
    axis=st.integers(0, 1),
    kind=st.sampled_from(["tensor", "axis", "blocks"]),
    seed=st.integers(0, 99),
)
def test_grids_are_what_onnx_dequantizes(rows, k, axis, kind, seed):
    """The real numbers of a grid equal DequantizeLinear's, for every granularity and zero point."""
    rng = np.random.default_rng(seed)
    shape = (rows, k)
    stored = rng.integers(0, 256, shape).astype(np.uint8)
    block = 2 if kind == "blocks" else 0
    params = {
        "tensor": (),
        "axis": (shape[axis],),
        "blocks": tuple(-(-n // 2) if d == axis else n for d, n in enumerate(shape)),
    }[kind]
    scale = rng.uniform(0.1, 2, params).astype(np.float32)
    zero = rng.integers(0, 256, params).astype(np.uint8)
    found = grid_of(stored, scale, zero, axis, block).values
    expected = dequantize(
        stored, scale, zero, axis=None if kind == "tensor" else axis, block_size=block or None
    )
    np.testing.assert_array_equal(found, expected)


def test_packed_numbers():
    """MatMulNBits is what onnxruntime computes: numbers unpacked in its order, with its zero points."""
    rng = np.random.default_rng(0)
    k, n, block = 32, 6, 16
    packed = rng.integers(0, 256, (n, k // block, block // 2)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (n, k // block)).astype(np.float32)
    zeros = rng.integers(0, 256, (n, 1)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "b", "s", "z"],
        ["y"],
        "mm",
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=block,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, [4, k])],
        [helper.make_tensor_value_info("y", 1, [4, n])],
        [numpy_helper.from_array(a, name) for a, name in ((packed, "b"), (scales, "s"), (zeros, "z"))],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    unfolded = Unfolding(source, "m", HANDLERS).run()
    x = {"x": rng.normal(size=(4, k)).astype(np.float32)}
    expected, got = (Session(p, 1).run(x)[0] for p in (source, load(unfolded.proto).proto))
    # Sums of 32 products in another order.
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

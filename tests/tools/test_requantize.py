"""Quantizing a quantized model again: stored integers stay, and so does what saturating ranges did."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, feed_for, run_as_written, weights, whole_recipe
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from ort_quantizer import by_ort

from onnxfq.cli.main import main
from onnxfq.documents.cast_plan import ALL_FLOAT32, FloatOptions
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError
from onnxfq.graph.model import list_nodes
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.quantized.existing import load_existing
from onnxfq.quantizing.pipeline import QuantizeResult, quantize
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.convert import convert

TURBO = pytest.mark.filterwarnings("ignore")  # onnxruntime's quantizer is not under test

NOISE_DB = 20.0
"""SQNR that int8 ranges of normal values leave after two products; a lost Relu or Clip leaves less than 5."""

INTEGERS = (TensorProto.INT8, TensorProto.INT4, TensorProto.FLOAT8E4M3FN)


def sqnr_db(source: onnx.ModelProto, result: onnx.ModelProto, feed: dict[str, np.ndarray]) -> float:
    """Return the noise of `result` against `source`."""
    want, got = (run_as_written(one, feed)[0] for one in (source, result))
    return ErrorSums.from_arrays(want, got).sqnr_db


def again(
    proto: onnx.ModelProto,
    feed: dict[str, np.ndarray],
    recipe: str | Recipe = "tensorrt-int8",
    floats: FloatOptions = ALL_FLOAT32,
    **more: object,
) -> QuantizeResult:
    """Quantize `proto` again on `feed`; remedies are tried where a test asks for them."""
    chosen = load_recipe(recipe).model_copy(update={"existing": "requantize"})
    more = {"accuracy": AccuracyTarget(repair=None)} | more
    return quantize(proto, [feed], recipe=chosen, options=QuantizeOptions(floats=floats), **more)


def stored(result: QuantizeResult) -> list[NDArray[np.float32]]:
    """Return the quantized constants of the result as numbers."""
    return [
        numpy_helper.to_array(t).astype(np.float32)
        for t in result.qdq.graph.initializer
        if t.data_type in INTEGERS and len(t.dims) > 1
    ]


def note(result: QuantizeResult) -> str:
    """Return the note on weights that had a grid."""
    return next((one for one in result.staged.notes if "weights with numbers on a grid" in one), "")


def operators(proto: onnx.ModelProto) -> list[str]:
    """Return the operators but pairs and Identity."""
    gone = {"QuantizeLinear", "DequantizeLinear", "Identity"}
    return [node.op_type for node in list_nodes(proto.graph) if node.op_type not in gone]


X = {"x": weights(64, 64, seed=3)}
W = weights(64, 48, seed=1)
SCALE = (np.abs(W).max(0) / 127).astype(np.float32)
CODES = np.clip(np.rint(W / SCALE), -127, 127).astype(np.int8)
WITH_LOWEST = np.where(np.arange(64)[:, None] == 3, -128, CODES).astype(np.int8)
UNSIGNED = (CODES.astype(int) + 128).astype(np.uint8)
LIVE = (np.arange(48) != 5).astype(np.int8)
FLOAT8 = (W / np.abs(W).max(0) * 448).astype(ml_dtypes.float8_e4m3fn)
COARSE = np.clip(np.rint(W / SCALE / 18), -7, 7)
ACTIVATION = {"sx": np.float32(0.03), "zx": np.int8(0)}
PAIR = "q = QuantizeLinear (x, sx, zx) d = DequantizeLinear (q, sx, zx) "
DEQUANTIZE = "wd = DequantizeLinear <axis = 1> (w, s{}) y = MatMul (d, wd)"
FAKE = "wd = DequantizeLinear <axis = 1> ({}, s, z) y = MatMul (d, wd)"

GRIDS = {
    "per axis": (DEQUANTIZE.format(""), {"w": CODES, "s": SCALE}, CODES),
    "lowest number": (DEQUANTIZE.format(""), {"w": WITH_LOWEST, "s": SCALE}, WITH_LOWEST),
    "per tensor": (
        "wd = DequantizeLinear (w, s) y = MatMul (d, wd)",
        {"w": CODES, "s": np.float32(0.02)},
        CODES,
    ),
    "zero point": (
        DEQUANTIZE.format(", z"),
        {"w": UNSIGNED, "s": SCALE, "z": np.full(48, 128, np.uint8)},
        CODES,
    ),
    "negative scales": (DEQUANTIZE.format(""), {"w": CODES, "s": -SCALE}, -CODES.astype(int)),
    "a channel of zeros": (
        DEQUANTIZE.format(""),
        {"w": CODES * LIVE, "s": (SCALE * LIVE).astype(np.float32)},
        CODES * LIVE,
    ),
    "Transpose": (
        "t = DequantizeLinear <axis = 0> (w, s) wd = Transpose <perm = [1, 0]> (t) y = MatMul (d, wd)",
        {"w": np.ascontiguousarray(CODES.T), "s": SCALE},
        CODES.T,
    ),
    "Reshape": (
        "t = DequantizeLinear <axis = 2> (w, s) wd = Reshape (t, shape) y = MatMul (d, wd)",
        {"w": CODES.reshape(8, 8, 48), "s": SCALE, "shape": np.array([64, 48])},
        CODES,
    ),
    "Gemm transB": (
        "wd = DequantizeLinear <axis = 0> (w, s) y = Gemm <transB = 1> (d, wd, b)",
        {"w": np.ascontiguousarray(CODES.T), "s": SCALE, "b": weights(48)},
        CODES.T,
    ),
    "Cast, Sub, Mul": (
        "c = Cast <to = 1> (w) u = Sub (c, z) wd = Mul (u, s) y = MatMul (d, wd)",
        {"w": UNSIGNED, "s": SCALE, "z": np.float32(128)},
        CODES,
    ),
    "Cast, Mul, Transpose": (
        "c = Cast <to = 1> (w) t = Mul (s, c) wd = Transpose <perm = [1, 0]> (t) y = MatMul (d, wd)",
        {"w": np.ascontiguousarray(CODES.T), "s": SCALE[:, None]},
        CODES,
    ),
    "Q and DQ": (
        "c = QuantizeLinear <axis = 1> (w, s, z) " + FAKE.format("c"),
        {"w": W, "s": SCALE * np.float32(0.9), "z": np.zeros(48, np.int8)},
        np.clip(np.rint(W / (SCALE * np.float32(0.9))), -128, 127),
    ),
    "Q and DQ with negative scales": (
        "c = QuantizeLinear <axis = 1> (w, s, z) " + FAKE.format("c"),
        {"w": W, "s": -SCALE, "z": np.zeros(48, np.int8)},
        CODES,
    ),
    "Transpose, Q and DQ": (
        "t = Transpose <perm = [1, 0]> (w) c = QuantizeLinear <axis = 1> (t, s, z) " + FAKE.format("c"),
        {"w": np.ascontiguousarray(W.T), "s": SCALE, "z": np.zeros(48, np.int8)},
        CODES,
    ),
    "Brevitas": (
        "c = QuantizeLinear <axis = 1> (w, s, z) e = Clip (c, least, most) " + FAKE.format("e"),
        {
            **{"w": W, "s": SCALE * 18, "z": np.zeros(48, np.int8)},
            **{"least": np.int8(-7), "most": np.int8(7)},
        },
        COARSE,
    ),
}


@pytest.mark.grid
@pytest.mark.parametrize("floats", ["fp32", "fp16"])
@pytest.mark.parametrize("name", GRIDS)
def test_stored_integers_stay(name: str, floats: str) -> None:
    """The format of the recipe has the grid of the weight: not one integer changes, and the note says so."""
    nodes, constants, want = GRIDS[name]
    proto = build(f"g (float[N,64] x) => (float[N,48] y) {{ {PAIR} {nodes} }}", ACTIVATION | constants)
    result = again(proto, X, floats=FloatOptions(name=floats))
    assert any(one.shape == want.shape and np.array_equal(one, want) for one in stored(result))
    assert note(result) == "weights with numbers on a grid: 1 kept"
    assert sqnr_db(proto, result.qdq, X) > (18.0 if name == "Brevitas" else NOISE_DB)  # 4-bit weights


@pytest.mark.parametrize(
    ("op", "shape", "axis", "attributes"),
    [("Conv", (16, 1, 3, 3), 0, "group = 16"), ("Conv", (8, 16, 3, 3), 0, "pads = [1, 1, 1, 1]")],
)
def test_integers_of_convolutions_stay(op: str, shape: tuple[int, ...], axis: int, attributes: str) -> None:
    """The same holds for depthwise and other convolutions."""
    w = weights(*shape, seed=4)
    others = tuple(d for d in range(4) if d != axis)
    scale = (np.abs(w).max(others) / 127).astype(np.float32)
    codes = np.rint(w / np.expand_dims(scale, others)).astype(np.int8)
    proto = build(
        f"""g (float[N,16,8,8] x) => (float[N,C,H,W] y) {{ {PAIR}
            wd = DequantizeLinear <axis = {axis}> (w, s) y = {op} <{attributes}> (d, wd) }}""",
        ACTIVATION | {"w": codes, "s": scale},
    )
    result = again(proto, {"x": weights(8, 16, 8, 8)})
    assert any(np.array_equal(one, codes) for one in stored(result))
    assert note(result).endswith("1 kept")


@pytest.mark.sample
def test_a_shared_weight_keeps_its_integers() -> None:
    """Two layers read one weight: one grid."""
    square = CODES[:, np.arange(64) % 48]
    proto = build(
        f"""g (float[N,64] x) => (float[N,64] y) {{ {PAIR} wd = DequantizeLinear <axis = 1> (w, s)
            h = MatMul (d, wd) r = Relu (h) y = MatMul (r, wd) }}""",
        ACTIVATION | {"w": square, "s": SCALE[np.arange(64) % 48]},
    )
    result = again(proto, X)
    assert [np.array_equal(one, square) for one in stored(result)] == [True]


def test_float8_and_float16_stay() -> None:
    """A float8 weight keeps its codes; scales of float16 are taken as they are."""
    text = "wd = DequantizeLinear <axis = 1> (w, s) y = MatMul (x, wd) }"
    scale = np.abs(W).max(0) / 448
    proto = build(
        "g (float[N,64] x) => (float[N,48] y) { " + text, {"w": FLOAT8, "s": scale}, opset=21, ir=10
    )
    result = again(proto, X, whole_recipe("tensorrt-fp8"))
    assert np.array_equal(stored(result)[0], FLOAT8.astype(np.float32))
    constants = {"w": CODES, "s": SCALE.astype(np.float16)}
    half = build("g (float16[N,64] x) => (float16[N,48] y) { " + text, constants, opset=19, ir=9)
    result = again(half, {"x": X["x"].astype(np.float16)})
    assert np.array_equal(stored(result)[0], CODES)
    scales = [numpy_helper.to_array(t) for t in result.qdq.graph.initializer if list(t.dims) == [48]]
    assert any(np.array_equal(one, constants["s"]) for one in scales)


@pytest.mark.parametrize("form", ["DequantizeLinear", "Reshape"])
def test_blocks_stay(form: str) -> None:
    """int4 in the blocks of the recipe keeps its codes, gptq included; so do blocks that a Reshape joins."""
    codes = np.clip(np.rint(weights(256, 48) * 3), -8, 7)
    scale = np.abs(weights(2, 48, seed=2)) + np.float32(0.01)
    if form == "DequantizeLinear":
        nodes = "wd = DequantizeLinear <axis = 0, block_size = 128> (w, s) y = MatMul (x, wd)"
        constants = {"w": codes.astype(ml_dtypes.int4), "s": scale}
    else:
        nodes = """c = Cast <to = 1> (w) m = Mul (c, s) r = Reshape (m, shape)
            wd = Transpose <perm = [1, 0]> (r) y = MatMul (x, wd)"""
        blocks = np.ascontiguousarray(codes.T.astype(np.int8)).reshape(48, 2, 128)
        constants = {
            "w": blocks,
            "s": np.ascontiguousarray(scale.T)[:, :, None],
            "shape": np.array([48, 256]),
        }
    proto = build(f"g (float[N,256] x) => (float[N,48] y) {{ {nodes} }}", constants, opset=21, ir=10)
    feed = {"x": weights(32, 256, seed=5)}
    result = again(proto, feed, "tensorrt-int4")
    assert any(np.array_equal(one, codes) for one in stored(result))
    assert sqnr_db(proto, result.qdq, feed) > 100.0  # the product is summed in another order


def test_weights_of_another_grid_are_counted() -> None:
    """Zero points that leave the format, and equalized values: rounded again, and the note says why."""
    constants = {"w": UNSIGNED, "s": SCALE, "z": np.full(48, 100, np.uint8)}
    nodes = DEQUANTIZE.format(", z")
    proto = build(f"g (float[N,64] x) => (float[N,48] y) {{ {PAIR} {nodes} }}", ACTIVATION | constants)
    result = again(proto, X)
    assert "1 rounded again ('wd'): int8 symmetric per-axis 1 does not have the grid" in note(result)
    norm = {"g": np.exp(3 * weights(64)), "b": weights(64), "w": CODES, "s": SCALE}
    proto = build(
        """g (float[N,64] x) => (float[N,48] y) { d = LayerNormalization (x, g, b)
            wd = DequantizeLinear <axis = 1> (w, s) y = MatMul (d, wd) }""",
        norm,
    )
    smooth = load_recipe("tensorrt-int8").model_copy(update={"smooth": 0.5})
    assert "1 rounded again ('wd'): equalizing, smoothing or" in note(again(proto, X, smooth))


@TURBO
def test_negative_scales_of_onnxruntime() -> None:
    """Its 4-bit quantizer writes them; the 8 of a negated -8 is clipped and counted, by convert too."""
    proto = build(
        "g (float[N,64] x) => (float[N,64] y) { [a] y = MatMul (x, w) }",
        {"w": weights(64, 64)},
        opset=21,
        ir=10,
    )
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, quant_format=QuantFormat.QDQ)
    quantizer = MatMulNBitsQuantizer(proto, algo_config=config)
    quantizer.process()
    source = quantizer.model.model
    constants = {t.name: numpy_helper.to_array(t) for t in source.graph.initializer}
    scale = next(one for one in constants.values() if one.dtype == np.float32)
    codes = next(one for one in constants.values() if one.dtype == ml_dtypes.int4)
    lost = int(((codes == -8) & (np.repeat(scale, 32, 0) < 0)).sum())
    assert lost and (scale < 0).any()
    result = again(source, X)
    assert sqnr_db(source, result.qdq, X) > NOISE_DB
    assert "1 rounded again" in note(result)
    changes = convert(source, data=[X]).changes
    assert changes["number of such a weight clipped"] == lost
    assert changes["weight kept on the grid of the source but for clipped numbers"] == 1
    assert "weight kept on the grid of the source" not in changes


IMAGES = {"x": weights(16, 16, 8, 8, seed=50)}
CONVS = {"w": weights(16, 16, 3, 3) * np.float32(0.2), "b": weights(16), "w2": weights(16, 16, 3, 3, seed=1)}
SAME = "q = QuantizeLinear (a, s, z) r = DequantizeLinear (q, s, z)"
AXIS = "q = QuantizeLinear <axis = {0}> (a, s, z) r = DequantizeLinear <axis = {0}> (q, s, z)"
STEPS = np.linspace(0.001, 0.02, 16, dtype=np.float32)
f32 = np.float32

# The nodes between two Convs, their constants, the opset, and the operators that are left.
SATURATING = {
    "Relu": (SAME, {"s": f32(0.5), "z": np.uint8(0)}, 17, ["Relu"]),
    "Relu6": (SAME, {"s": f32(3 / 255), "z": np.uint8(0)}, 17, ["Clip"]),
    "Clip": (SAME, {"s": f32(2 / 255), "z": np.uint8(128)}, 17, ["Clip"]),
    "Hardtanh": (SAME, {"s": f32(1 / 127), "z": np.int8(0)}, 17, ["Clip"]),
    "int16": (SAME, {"s": f32(1 / 32767), "z": np.int16(0)}, 21, ["Clip"]),
    "uint16": (SAME, {"s": f32(2 / 65535), "z": np.uint16(32768)}, 21, ["Clip"]),
    "float8": (SAME, {"s": f32(1 / 448), "z": np.zeros((), ml_dtypes.float8_e4m3fn)}, 21, ["Clip"]),
    "int4": (
        "q = QuantizeLinear <output_dtype = 22> (a, s) r = DequantizeLinear (q, s)",
        {"s": f32(1 / 7)},
        21,
        ["Clip"],
    ),
    "negative scale": (SAME, {"s": f32(-1 / 127), "z": np.int8(0)}, 17, ["Clip"]),
    "per axis": (AXIS.format(1), {"s": STEPS, "z": np.zeros(16, np.uint8)}, 17, ["Max", "Min"]),
    "per axis from the end": (AXIS.format(-3), {"s": STEPS, "z": np.zeros(16, np.int8)}, 17, ["Max", "Min"]),
    "factor": (
        "q = QuantizeLinear (a, s, z) r = DequantizeLinear (q, t, z)",
        {"s": f32(1 / 127), "t": f32(2 / 127), "z": np.int8(0)},
        17,
        ["Clip", "Mul"],
    ),
    "behind a Relu": (
        f"h = Relu (a) {SAME.replace('(a', '(h')}",
        {"s": f32(0.5), "z": np.uint8(0)},
        17,
        ["Relu"],
    ),
    "before a Relu": (
        f"{SAME.replace('r =', 'h =')} r = Relu (h)",
        {"s": f32(1.0), "z": np.int8(0)},
        17,
        ["Relu"],
    ),
    "behind a Sigmoid": (
        f"h = Sigmoid (a) {SAME.replace('(a', '(h')}",
        {"s": f32(1 / 256), "z": np.uint8(0)},
        17,
        ["Sigmoid"],
    ),
    "wide": (SAME, {"s": f32(1.0), "z": np.int8(0)}, 17, []),
    "opset 10": (SAME, {"s": f32(3 / 255), "z": np.uint8(0)}, 10, ["Clip"]),
    "opset 12": (SAME, {"s": f32(3 / 255), "z": np.uint8(0)}, 12, ["Clip"]),
    "Clip of integers": (
        "q = QuantizeLinear (a, s, z) c = Clip (q, z, most) r = DequantizeLinear (c, s, z)",
        {"s": f32(0.05), "z": np.uint8(0), "most": np.uint8(40)},
        17,
        ["Clip"],
    ),
    "computed scale": (f"s = Mul (t, t) {SAME}", {"t": f32(0.1), "z": np.uint8(0)}, 17, ["Clip"]),
    "dynamic": ("q, s, z = DynamicQuantizeLinear (a) r = DequantizeLinear (q, s, z)", {}, 17, []),
    "two pairs": (
        f"{SAME.replace('r =', 'h =')} p = MaxPool <kernel_shape = [1, 1]> (h) "
        "e = QuantizeLinear (p, s, z) r = DequantizeLinear (e, s, z)",
        {"s": f32(0.01), "z": np.uint8(0)},
        17,
        ["Clip", "MaxPool"],
    ),
}


@pytest.mark.parametrize("name", SATURATING)
def test_saturation_stays(name: str) -> None:
    """The result is the source within the noise of int8, with a Clip or Relu only where it limits values."""
    nodes, constants, opset, left = SATURATING[name]
    proto = build(
        f"g (float[N,16,8,8] x) => (float[N,16,4,4] y) {{ a = Conv (x, w, b) {nodes} y = Conv (r, w2) }}",
        CONVS | constants,
        opset=opset,
        ir=10 if opset > 20 else 8,
    )
    result = again(proto, IMAGES)
    assert operators(result.qdq) == ["Conv", *left, "Conv"]
    noise = 15.0 if name == "int4" else NOISE_DB  # the source itself has 15 numbers there
    assert sqnr_db(proto, result.qdq, IMAGES) > noise


def test_saturation_in_bodies_and_halves() -> None:
    """A pair in a branch, and a pair of float16 numbers, leave their Clip there."""
    branch = build(
        """g (float[N,64] x) => (float[N,64] y) { h = MatMul (x, w) m = ReduceMax <keepdims = 0> (x)
            c = Greater (m, zero) y = If (c) <
                then_branch = t () => (float[N,64] o) { z = Constant <value = uint8 {0}> ()
                    q = QuantizeLinear (h, s, z) d = DequantizeLinear (q, s, z) o = MatMul (d, w) },
                else_branch = e () => (float[N,64] p) { p = MatMul (h, w) } > }""",
        {"w": weights(64, 64), "zero": f32(0), "s": f32(0.02)},
    )
    assert sqnr_db(branch, again(branch, X).qdq, X) > NOISE_DB
    half = build(
        """g (float16[N,64] x) => (float16[N,48] y) { h = MatMul (x, w) q = QuantizeLinear (h, s, z)
            d = DequantizeLinear (q, s, z) y = MatMul (d, v) }""",
        {
            "w": weights(64, 64).astype(np.float16),
            **{"v": W.astype(np.float16), "s": np.float16(0.02), "z": np.uint8(0)},
        },
        opset=19,
        ir=9,
    )
    feed = {"x": X["x"].astype(np.float16)}
    result = again(half, feed)
    assert operators(result.qdq) == ["MatMul", "Clip", "MatMul"]
    assert sqnr_db(half, result.qdq, feed) > NOISE_DB


@pytest.mark.parametrize(
    ("nodes", "constants", "why"),
    [
        (
            "q = QuantizeLinear (h, s, z) d = DequantizeLinear (q, s, u)",
            {"s": f32(0.1), "z": np.int8(0), "u": np.int8(5)},
            "has other zero points or groups than QuantizeLinear",
        ),
        (
            "q = QuantizeLinear <axis = 1, block_size = 32> (h, s) "
            "d = DequantizeLinear <axis = 1, block_size = 32> (q, s)",
            {"s": np.abs(weights(4, 2))},
            "has a range for each block",
        ),
        (
            "t = ReduceMax <keepdims = 0> (h) q = QuantizeLinear (h, s, z) d = DequantizeLinear (q, t, z)",
            {"s": f32(0.1), "z": np.int8(0)},
            "computes its parameters",
        ),
    ],
)
def test_what_a_clip_cannot_express_is_refused(
    nodes: str, constants: dict[str, np.ndarray], why: str
) -> None:
    """One line names the node and the reason."""
    proto = build(
        f"g (float[4,64] x) => (float[4,48] y) {{ h = MatMul (x, w) {nodes} y = MatMul (d, v) }}",
        {"w": weights(64, 64), "v": W} | constants,
        opset=21,
        ir=10,
    )
    with pytest.raises(ModelError, match=f"{why}.*give the float model, or --keep-existing"):
        load_existing(proto, "requantize")


def test_fake_quant_nodes_leave_their_range() -> None:
    """FakeQuantize of onnxfq saturates as a pair does; its Clip has the ends of its range."""
    proto = build(
        """g (float[N,64] x) => (float[N,48] y) { h = MatMul (x, w)
            d = onnxfq.FakeQuantize <qtype = "uint8"> (h, s) y = MatMul (d, v) }""",
        {"w": weights(64, 64), "v": W, "s": f32(0.01)},
        onnxfq=1,
    )
    (limit,) = load_existing(proto, "requantize").limits.values()
    assert (limit.low, limit.high) == (0.0, pytest.approx(2.55))


@pytest.mark.grid
@TURBO
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("name", BUILDERS)
def test_models_of_onnxruntime(name: str, kind: str, per_channel: bool, tmp_path: Path) -> None:
    """A model of its quantizer keeps its outputs within the noise of the grid, or is refused in one line."""
    proto = BUILDERS[name]()
    feeds = [feed_for(proto, seed, 8) for seed in range(4)]
    asked = {"activation_type": QuantType[kind], "quant_format": QuantFormat.QDQ, "per_channel": per_channel}
    source = by_ort(proto, feeds, tmp_path, **asked)
    chosen = load_recipe("tensorrt-int8").model_copy(
        update={"existing": "requantize", "conv_transpose": "quantize"}
    )
    try:
        result = quantize(source, feeds, recipe=chosen, accuracy=AccuracyTarget(repair=None))
    except ModelError as fault:
        assert "--keep-existing" in str(fault)
        return
    assert sqnr_db(source, result.qdq, feeds[0]) > 20.0  # two roundings of int8, the source's and ours


def test_the_float_form_is_the_reference() -> None:
    """Noise is measured against the float form, which has no quantizer of the file."""
    proto = build(
        """g (float[N,64] x) => (float[N,48] y) {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, v) }""",
        {"v": W, "s": f32(0.015), "z": np.int8(0)},
    )
    feed = feed_for(proto, 0, 8)
    result = again(proto, feed, "onnxruntime-int8")
    (score,) = result.evaluation.candidates[0].outputs
    form = load_existing(proto, "requantize").proto
    assert score.sqnr_db == pytest.approx(sqnr_db(form, result.qdq, feed), abs=1.0)  # folds have other ranges


def test_the_stages_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends that no value passes are left out by the stages as by `quantize`, from the statistics."""
    monkeypatch.chdir(tmp_path)
    nodes, constants, *_ = SATURATING["Relu"]
    proto = build(
        f"g (float[N,16,8,8] x) => (float[N,16,4,4] y) {{ a = Conv (x, w, b) {nodes} y = Conv (r, w2) }}",
        CONVS | constants,
    )
    onnx.save(proto, "m.onnx")
    np.savez("d.npz", **IMAGES)
    for line in (
        "plan m.onnx -o p.json --requantize",
        "observe m.onnx --plan p.json --data d.npz -o s.npz",
        "calibrate m.onnx --plan p.json --statistics s.npz -o e.json",
        "insert m.onnx --plan p.json --encodings e.json -o a.onnx",
        "quantize m.onnx --data d.npz -o b.onnx --rounding nearest --requantize",
    ):
        assert main(line.split()) == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert operators(onnx.load("a.onnx")) == ["Conv", "Relu", "Conv"]

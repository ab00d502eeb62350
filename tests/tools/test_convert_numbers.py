"""`convert` of quantized numbers that a model computes with: what lies between the nodes of a pair."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from builders import Arrays, build, run_as_written, scalars
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from ort_quantizer import by_ort

from onnxfq.cli.main import main
from onnxfq.graph.ops import QUANTIZED_OPS
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.tools.convert import Conversion, convert

RNG = np.random.default_rng(0)


def ints(*values: int) -> np.ndarray:
    """Return an array of int64."""
    return np.asarray(values, np.int64)


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Return normal float32 numbers."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def stored(*shape: int, dtype: type = np.int8) -> np.ndarray:
    """Return numbers over most of the range of an integer type."""
    info = ml_dtypes.iinfo(dtype)
    return np.random.default_rng(7).integers(info.min + 1, info.max, shape).astype(dtype)


def agree(source: onnx.ModelProto, feed: Arrays, least: float, **options: object) -> Conversion:
    """Convert with and without data, assert at least `least` dB against the source; return the latter."""
    expected = run_as_written(source, feed)
    results = [convert(source, data=data, **options) for data in ([feed], None)]
    for result in results:
        assert not {node.op_type for node in result.qdq.graph.node} & QUANTIZED_OPS - {
            "QuantizeLinear",
            "DequantizeLinear",
        }
        assert result.check is not None and result.check.passed, result.check.table()
        for one, other in zip(expected, run_as_written(result.qdq, feed), strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert ErrorSums.from_arrays(one, other).sqnr_db >= least, result.changes
    return results[-1]


ZEROS = {
    "int8": np.int8(0),
    "uint8": np.uint8(128),
    "int8 shifted": np.int8(-9),
    "uint8 shifted": np.uint8(100),
}
PAIRED = """p = QuantizeLinear (a, s, z) d = DequantizeLinear (p, s, z) wd = DequantizeLinear (w, ws)
    x = Conv (d, wd) q = QuantizeLinear (x, s, z)"""
# Operators of ONNX between a pair: the text from q to t, and constants. `n` stands for a number.
BETWEEN: dict[str, tuple[str, Arrays]] = {
    "Clip": ("t = Clip (q, n, m)", {}),
    "Clip from below": ("t = Clip (q, n)", {}),
    "Max": ("t = Max (q, n)", {}),
    "Max of three": ("r = Transpose <perm = [0,1,3,2]> (q) t = Max (q, n, r)", {}),
    "Min": ("t = Min (m, q)", {}),
    "Relu": ("t = Relu (q)", {}),
    "Pad": ("t = Pad (q, pads, n)", {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "Pad without value": ("t = Pad (q, pads)", {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "Pad by reflection": ('t = Pad <mode = "reflect"> (q, pads)', {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "Where": ("c = Greater (x, level) t = Where (c, q, n)", {"level": np.float32(0.5)}),
    "Concat": ("t = Concat <axis = 1> (tokens, q)", {}),
    "ScatterND": ("t = ScatterND (q, at, rows)", {"at": ints(0).reshape(1, 1)}),
    "ScatterElements": (
        "t = ScatterElements <axis = 1> (q, ix, few)",
        {"ix": np.zeros((2, 1, 6, 6), np.int64)},
    ),
    "Greater": ("g = Greater (q, n) f = Cast <to = 1> (g) d2 = Mul (x, f) t = QuantizeLinear (d2, s, z)", {}),
    "Equal": ("g = Equal (n, q) f = Cast <to = 1> (g) d2 = Add (x, f) t = QuantizeLinear (d2, s, z)", {}),
    "Less": ("g = Less (q, n) f = Cast <to = 1> (g) d2 = Mul (x, f) t = QuantizeLinear (d2, s, z)", {}),
    "MaxPool": ("t = MaxPool <kernel_shape = [2,2], pads = [1,1,0,0]> (q)", {}),
    "Transpose, Reshape": (
        "r = Transpose <perm = [0,1,3,2]> (q) t = Reshape (r, to)",
        {"to": ints(0, 0, 4, 9)},
    ),
    "Split, Concat": ("e, b = Split <axis = 1> (q, two) t = Concat <axis = 1> (b, e)", {"two": ints(1, 3)}),
    "Slice": ("t = Slice (q, one, last, axes)", {"one": ints(1), "last": ints(9), "axes": ints(2)}),
    "Gather": ("t = Gather <axis = 1> (q, ix)", {"ix": ints(2, 0)}),
    "Expand": ("t = Expand (q, big)", {"big": ints(2, 4, 6, 6)}),
    "Tile": ("t = Tile (q, by)", {"by": ints(1, 2, 1, 1)}),
    "Resize": ("t = Resize (q, , by)", {"by": np.asarray([1, 1, 2, 2], np.float32)}),
    "ReduceMax": ("t = ReduceMax <axes = [2]> (q)", {}),
    "TopK": ("t, i = TopK (q, two)", {"two": ints(2)}),
    "DepthToSpace": ("t = DepthToSpace <blocksize = 2> (q)", {}),
    "Cast to its own type": ("t = Cast <to = KIND> (q)", {}),
    "Cast to float": ("f = Cast (q) h = Mul (f, s) t = QuantizeLinear (h, s, z)", {}),
    "Shape": ("size = Shape (q) t = Reshape (q, size)", {}),
    "a constant from ConstantOfShape": (
        "k = ConstantOfShape <value = KIND_NAME[1] {5}> (big) t = Max (q, k)",
        {"big": ints(1, 1, 6, 6)},
    ),
    "a quantized constant": (
        "k = QuantizeLinear (real, s2, z) t = Concat <axis = 1> (q, k)",
        {"real": normal(2, 1, 6, 6), "s2": np.float32(0.03)},
    ),
}


@pytest.mark.grid
@pytest.mark.parametrize("opset", [13, 17, 21, 23])
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("case", BETWEEN)
def test_integers_between_a_pair(case: str, zero: str, opset: int) -> None:
    """Every operator that ONNX has for 8-bit integers computes the same with real numbers.

    40 dB: the grid of int8 is kept to the step. With another zero point than the middle the steps are wider,
    and a comparison of neighbours turns out differently.
    """
    if case == "ReduceMax" and opset >= 18:
        pytest.skip("its axes are an input")
    text, constants = BETWEEN[case]
    z = ZEROS[zero]
    kind = onnx.helper.np_dtype_to_tensor_dtype(z.dtype)
    text = text.replace("Cast (q)", "Cast <to = 1> (q)").replace("KIND_NAME", z.dtype.name)
    text = text.replace("KIND", str(kind))
    number, middle = z.dtype.type(z + 7), z.dtype.type(z + 60)
    values = {
        **scalars(np.float32, s=0.02, ws=0.01),
        "z": z,
        "n": number,
        "m": middle,
        "tokens": stored(2, 2, 6, 6, dtype=z.dtype.type),
        "rows": stored(1, 4, 6, 6, dtype=z.dtype.type),
        "few": stored(2, 1, 6, 6, dtype=z.dtype.type),
        "w": np.asarray([[100, -20, 0, 9], [5, 99, 1, 3], [7, 7, 99, 7], [0, 0, -50, 80]], np.int8)[
            ..., None, None
        ],
        **constants,
    }
    source = build(
        f"""g (float[2,4,6,6] a) => (float[A,B,C,D] y) {{
            {PAIRED} {text} y = DequantizeLinear (t, s, z) }}""",
        {name: value for name, value in values.items() if name in PAIRED + text},
        opset=opset,
        ir={13: 8, 17: 8, 21: 10, 23: 11}[opset],
    )
    if case == "Relu" and (z.dtype == np.uint8 or opset < 14):
        pytest.skip("onnxruntime has no kernel for it")
    compares = case in ("Equal", "Greater", "Less")
    agree(source, {"a": normal(2, 4, 6, 6)}, 40 if zero in ("int8", "uint8") else 20 if compares else 28)


GRIDS = {
    "Relu": ("uint8", 0, 0.02),
    "Clip(-1, 1)": ("uint8", 128, 1 / 127.5),
    "Clip(0, 6)": ("uint8", 0, 6 / 255),
    "Hardtanh(-2, 0.5)": ("uint8", 204, 2.5 / 255),
    "symmetric": ("int8", 0, 0.01),
    "from -0.5 to 4": ("int8", -100, 4.5 / 255),
    "negative": ("int8", 127, 0.01),
    "16 bits": ("int16", 0, 1 / 32767),
    "16 bits from 0": ("uint16", 0, 1 / 65535),
}
READERS = {
    "a product": "y = Conv (d, v)",
    "no product": "y = Mul (d, k)",
    "both": "e = Conv (d, v) m = Mul (d, k) y = Add (e, m)",
    "a product behind movement": "t = Transpose <perm = [0,1,3,2]> (d) y = Conv (t, v)",
    "the output": "y = Identity (d)",
}


@pytest.mark.grid
@pytest.mark.parametrize("readers", READERS)
@pytest.mark.parametrize("grid", GRIDS)
def test_ranges_limit_values(grid: str, readers: str) -> None:
    """A pair whose range limits values is a Clip, or a pair with the same range, whatever reads it.

    25 dB: a range from 0 to 255 steps has half of the steps in symmetric int8.
    """
    kind, zero, scale = GRIDS[grid]
    source = build(
        f"""g (float[2,4,6,6] x) => (float[2,4,6,6] y) {{
            p = QuantizeLinear (x, s0, z0) c = DequantizeLinear (p, s0, z0) wd = DequantizeLinear (w, ws)
            a = Conv (c, wd) q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, ws) {READERS[readers]} }}""",
        {
            **scalars(np.float32, s0=0.03, ws=0.01, s=scale),
            "z0": np.int8(0),
            "w": stored(4, 4, 1, 1),
            "z": np.asarray(zero, kind),
            "k": normal(4, 1, 1),
        },
        opset=21,
        ir=10,
    )
    result = agree(source, {"x": normal(2, 4, 6, 6)}, 25)
    clips = sum(node.op_type == "Clip" for node in result.qdq.graph.node)
    if grid == "symmetric" and readers in ("a product", "a product behind movement"):
        assert clips == 0, "the pair in front of the product has this range"


def test_bounded_values_are_not_clipped() -> None:
    """Values that an operator bounds within the range need no Clip: Sigmoid, Relu of a Clip, Softmax."""
    texts = ("b = Sigmoid (a)", "b = Softmax (a)", "r = Relu (a) b = Clip (r, , one)")
    for text in texts:
        source = build(
            f"""g (float[2,8] x) => (float[2,8] y) {{
                p = QuantizeLinear (x, s, z) c = DequantizeLinear (p, s, z) wd = DequantizeLinear (w, s)
                a = MatMul (c, wd) {text} q = QuantizeLinear (b, t, u) d = DequantizeLinear (q, t, u)
                y = Mul (d, d) }}""",
            {
                **scalars(np.float32, s=0.03, t=1 / 255, one=1),
                "z": np.int8(0),
                "u": np.uint8(0),
                "w": stored(8, 8),
            },
        )
        result = convert(source)
        before = sum(node.op_type == "Clip" for node in source.graph.node)
        assert sum(node.op_type == "Clip" for node in result.qdq.graph.node) == before


@pytest.mark.grid
@pytest.mark.parametrize("numbers", [(0.02, 0, 0.05, 0), (0.02, 3, 0.02, -5), (0.05, -7, 0.01, -20)])
@pytest.mark.parametrize("reader", ["e = MatMul (d, k)", "e = Relu (d)"])
def test_a_pair_that_scales(numbers: tuple[float, int, float, int], reader: str) -> None:
    """A DequantizeLinear with another scale or zero point than its QuantizeLinear is a factor and a term."""
    s, z, t, u = numbers
    source = build(
        f"""g (float[4,8] x) => (float[4,8] y) {{
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, t, u) k = DequantizeLinear (w, ws)
            {reader} y = MatMul (e, k) }}""",
        {**scalars(np.float32, s=s, t=t, ws=0.01), **scalars(np.int8, z=z, u=u), "w": stored(8, 8)},
    )
    result = agree(source, {"x": normal(4, 8)}, 25)
    assert result.changes["scale or zero point that a pair changes between its nodes applied"] == 1


@pytest.mark.grid
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", range(2, 9))
def test_narrow_ranges_of_brevitas(bits: int, signed: bool) -> None:
    """Brevitas' QCDQ, an integer Clip to fewer bits in weights and activations, is kept to the bit.

    90 dB: the product is summed in another order.
    """
    low = -(1 << (bits - 1)) + 1 if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << min(bits, 7)) - 1
    kind = np.int8 if signed else np.uint8
    source = build(
        """g (float[4,8] x) => (float[4,6] y) {
            q = QuantizeLinear (x, s, z) n = Clip (q, low, high) d = DequantizeLinear (n, s, z)
            wq = QuantizeLinear <axis = 0> (w, ws, wz) wn = Clip (wq, wlow, whigh)
            wd = DequantizeLinear <axis = 0> (wn, ws, wz) wt = Transpose (wd)
            m = MatMul (d, wt) r = Relu (m) rq = QuantizeLinear (r, t, z) rn = Clip (rq, low, high)
            y = DequantizeLinear (rn, t, z) }""",
        {
            **scalars(np.float32, s=3 / high, t=2 / high),
            **scalars(np.int8, wlow=-(1 << (bits - 1)) + 1, whigh=(1 << (bits - 1)) - 1),
            "z": kind(0),
            "low": kind(low),
            "high": kind(high),
            "w": normal(6, 8),
            "ws": np.abs(normal(6, scale=2 / high, seed=3)) + np.float32(0.01),
            "wz": np.zeros(6, np.int8),
        },
    )
    feed = {"x": normal(4, 8, seed=5)}
    result = convert(source, data=[feed])
    assert result.changes["weight kept on the grid of the source"] == 1
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 1/1"]
    inner = "m" if "m" in {n.output[0] for n in result.qdq.graph.node} else ""
    assert inner
    outputs = []
    for proto in (source, result.qdq):
        seen = onnx.ModelProto()
        seen.CopyFrom(proto)
        seen.graph.output.append(onnx.helper.make_tensor_value_info(inner, 1, None))
        outputs.append(run_as_written(seen, feed)[-1])
    assert ErrorSums.from_arrays(*outputs).sqnr_db > 90


WEIGHT_MOVES = {
    "Transpose": ("t = Transpose (k)", (6, 8)),
    "Reshape": ("t = Reshape (k, to)", (2, 24)),
    "Identity": ("t = Identity (k)", (8, 6)),
    "Transpose of the integers": ("", (6, 8)),
}


@pytest.mark.grid
@pytest.mark.parametrize("scales", ["one", "by channel"])
@pytest.mark.parametrize("case", WEIGHT_MOVES)
def test_moved_weights_stay_on_their_grid(case: str, scales: str) -> None:
    """A stored weight that is moved before it is multiplied, before or behind its DequantizeLinear."""
    text, shape = WEIGHT_MOVES[case]
    axis = 1 if case == "Identity" else 0
    if case == "Transpose of the integers":
        text, axis = "turned = Transpose (w) t = DequantizeLinear <axis = 1> (turned, ws)", 1
    elif scales == "by channel" and case == "Reshape":
        pytest.skip("channels do not survive a Reshape")
    else:
        text = f"k = DequantizeLinear <axis = {axis}> (w, ws) {text}"
    ws = np.float32(0.01) if scales == "one" else np.linspace(0.01, 0.02, 6).astype(np.float32)
    source = build(
        f"""g (float[4,8] x) => (float[4,6] y) {{
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) {text} y = MatMul (d, t) }}""",
        {"s": np.float32(0.03), "z": np.int8(0), "w": stored(*shape), "ws": ws, "to": ints(8, 6)},
    )
    result = agree(source, {"x": normal(4, 8)}, 90)
    assert result.changes["weight kept on the grid of the source"] == 1


def test_tables_and_inputs_of_integers() -> None:
    """Integers from outside of a pair, a table and an input, are dequantized where they come in."""
    source = build(
        """g (uint8[4,8] x, int64[4] i) => (float[4,6] y) {
            xt = Transpose (x) q = Transpose (xt) d = DequantizeLinear (q, s, z)
            row = Gather (table, i) e = DequantizeLinear (row, t) a = Add (d, e)
            f = QuantizeLinear (a, u, v) h = DequantizeLinear (f, u, v)
            k = DequantizeLinear <axis = 1> (w, ws) y = MatMul (h, k) }""",
        {
            **scalars(np.float32, s=0.02, t=0.01, u=0.03),
            "z": np.uint8(128),
            "v": np.int8(0),
            "table": stored(10, 8),
            "w": stored(8, 6),
            "ws": np.linspace(0.01, 0.02, 6).astype(np.float32),
        },
    )
    feed = {"x": stored(4, 8, dtype=np.uint8), "i": ints(3, 1, 9, 3)}
    agree(source, feed, 60)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_half_models(kind: type) -> None:
    """Real numbers have the type of the scales: a model in float16 stays one."""
    floats = "float16" if kind is np.float16 else "float"
    source = build(
        f"""g ({floats}[4,8] x) => ({floats}[4,6] y) {{
            q = QuantizeLinear (x, s, z) n = Max (q, low) d = DequantizeLinear (n, s, z)
            k = DequantizeLinear (w, ws) m = MatMul (d, k)
            o = QuantizeLinear (m, t, z) y = DequantizeLinear (o, t, z) }}""",
        {
            **scalars(np.int8, z=0, low=-20),
            "s": kind(0.02),
            "w": stored(8, 6),
            "ws": kind(0.01),
            "t": kind(0.05),
        },
        opset=21,
        ir=10,
    )
    agree(source, {"x": normal(4, 8).astype(kind)}, 30)


CONTRIB: dict[str, tuple[str, Arrays]] = {
    "MatMulInteger behind a Q": (
        """q = QuantizeLinear (x, s, z) i = MatMulInteger (q, w, z, wz) f = Cast <to = 1> (i)
        y = Mul (f, f1)""",
        {"wz": np.asarray([1, -2, 3, 0, 5, 9], np.int8), "f1": np.float32(0.0002)},
    ),
    "MatMulInteger, dynamic": (
        """q, qs, qz = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, qz) f = Cast <to = 1> (i)
        g = Mul (qs, f1) y = Mul (f, g)""",
        {"f1": np.float32(0.01)},
    ),
    "Pad of dynamic numbers": (
        """q, qs, qz = DynamicQuantizeLinear (x) p = Pad (q, pads, qz) i = MatMulInteger (p, w2, qz)
        f = Cast <to = 1> (i) g = Mul (qs, f1) y = Mul (f, g)""",
        {"f1": np.float32(0.01), "pads": ints(0, 0, 0, 2), "w2": stored(10, 6)},
    ),
    "MatMulIntegerToFloat": (
        "q = QuantizeLinear (x, s, z) y = com.microsoft.MatMulIntegerToFloat (q, w, s, ws, z, wz, bias)",
        {"ws": np.float32(0.01), "wz": np.int8(3), "bias": normal(6)},
    ),
    "DynamicQuantizeMatMul": (
        "y = com.microsoft.DynamicQuantizeMatMul (x, w, ws, wz, bias)",
        {"ws": np.linspace(0.01, 0.02, 6).astype(np.float32), "wz": np.zeros(6, np.int8), "bias": normal(6)},
    ),
    "QGemm to float": (
        """q = QuantizeLinear (x, s, z)
        y = com.microsoft.QGemm <transB = 1, alpha = 0.5> (q, s, z, turned, ws, wz, b32)""",
        {
            "turned": stored(6, 8),
            "ws": np.linspace(0.01, 0.02, 6).astype(np.float32),
            "wz": np.zeros(6, np.int8),
            "b32": np.arange(6, dtype=np.int32) * 50,
        },
    ),
    "QLinearWhere": (
        """q = QuantizeLinear (x, s, z) c = Greater (x, level)
        o = com.microsoft.QLinearWhere (c, q, s, z, other, s, z, t, u) d = DequantizeLinear (o, t, u)
        k = DequantizeLinear (w, s) y = MatMul (d, k)""",
        {"level": np.float32(0.3), "other": np.int8(9), "t": np.float32(0.03), "u": np.int8(0)},
    ),
    "QLinearSigmoid, LeakyRelu, Mul": (
        """q = QuantizeLinear (x, s, z) a = com.microsoft.QLinearSigmoid (q, s, z, t, u)
        b = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (q, s, z, s, z)
        m = com.microsoft.QLinearMul (a, t, u, b, s, z, s, z) d = DequantizeLinear (m, s, z)
        k = DequantizeLinear (w, s) y = MatMul (d, k)""",
        {"t": np.float32(1 / 255), "u": np.int8(-128)},
    ),
    "QLinearMatMul of two computed": (
        """q = QuantizeLinear (x, s, z) r = Transpose (q) o = QLinearMatMul (q, s, z, r, s, z, t, u)
        y = DequantizeLinear (o, t, u)""",
        {"t": np.float32(0.2), "u": np.int8(0)},
    ),
    "QLinearMatMul by column": (
        """q = QuantizeLinear (x, s, z) o = QLinearMatMul (q, s, z, w, ws, wz, t, u)
        y = DequantizeLinear (o, t, u)""",
        {
            "t": np.float32(0.1),
            "u": np.int8(0),
            "ws": np.linspace(0.01, 0.02, 6).astype(np.float32),
            "wz": np.zeros(6, np.int8),
        },
    ),
}


@pytest.mark.parametrize("case", CONTRIB)
@pytest.mark.wide_sums
def test_integer_operators(case: str) -> None:
    """Pairs compute the results of onnxruntime's integer operators.

    28 dB: a dynamic scale is less than the constant one of the same data.
    """
    text, constants = CONTRIB[case]
    values = {"s": np.float32(0.025), "z": np.int8(0), "w": stored(8, 6), **constants}
    source = build(
        f"g (float[4,8] x) => (float[P,Q] y) {{ {text} }}",
        {name: value for name, value in values.items() if name in text},
        opset=17,
        **{"com.microsoft": 1},
    )
    feed = {"x": normal(4, 8)}
    expected, result = run_as_written(source, feed)[0], convert(source, data=[feed])
    assert result.check is not None and result.check.passed, result.check.table()
    assert all(row.quantized == row.total for row in result.plan.coverage())
    assert ErrorSums.from_arrays(expected, run_as_written(result.qdq, feed)[0]).sqnr_db > 28


@pytest.mark.grid
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.wide_sums
def test_dynamic_lstm(kind: str, per_channel: bool, direction: str, tmp_path: Path) -> None:
    """DynamicQuantizeLSTM becomes LSTM with its real weights.

    30 dB: the source also rounds what enters its products.
    """
    ways = 2 if direction == "bidirectional" else 1
    proto = build(
        f"""g (float[5,3,16] x) => (float[{ways},3,8] y) {{
            l, h, c = LSTM <hidden_size = 16, direction = "{direction}"> (x, w, r, b) y = MatMul (h, o) }}""",
        {
            "w": normal(ways, 64, 16, scale=0.3),
            "r": normal(ways, 64, 16, scale=0.3, seed=1),
            "b": normal(ways, 128, scale=0.1),
            "o": normal(16, 8),
        },
    )
    onnx.save(proto, tmp_path / "float.onnx")
    quantize_dynamic(
        tmp_path / "float.onnx",
        tmp_path / "dynamic.onnx",
        weight_type=QuantType[kind],
        per_channel=per_channel,
    )
    source = onnx.load(tmp_path / "dynamic.onnx")
    assert "DynamicQuantizeLSTM" in {node.op_type for node in source.graph.node}
    feed = {"x": normal(5, 3, 16)}
    result = convert(source, data=[feed])
    assert result.check is not None and result.check.passed, result.check.table()
    want, got = (run_as_written(one, feed)[0] for one in (source, result.qdq))
    assert ErrorSums.from_arrays(want, got).sqnr_db > 30


@pytest.mark.parametrize("mask", [None, (2, 6), (2,)])
@pytest.mark.filterwarnings("ignore")
def test_contrib_attention(mask: tuple[int, ...] | None, tmp_path: Path) -> None:
    """QAttention becomes a product with pairs, and attention in float; its mask stays.

    30 dB: a dynamic scale is less than the constant one of the same data.
    """
    declared = "" if mask is None else f", int32[{','.join(map(str, mask))}] mask"
    proto = build(
        f"""g (float[2,6,16] x{declared}) => (float[2,6,16] y) {{
            a = com.microsoft.Attention <num_heads = 4> (x, w, b{", mask" if mask else ""})
            y = MatMul (a, o) }}""",
        {"w": normal(16, 48, scale=0.3), "b": normal(48, scale=0.1), "o": normal(16, 16)},
        **{"com.microsoft": 1},
    )
    onnx.save(proto, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    source = onnx.load(tmp_path / "dynamic.onnx")
    assert "QAttention" in {node.op_type for node in source.graph.node}
    feed: Arrays = {"x": normal(2, 6, 16)}
    if mask is not None:
        seen = [[1] * 6, [1, 1, 1, 1, 0, 0]] if len(mask) == 2 else [6, 4]
        feed["mask"] = np.asarray(seen, np.int32)
    result = convert(source, data=[feed])
    assert [str(row) for row in result.plan.coverage()][:1] == ["MatMul 2/2"]
    want, got = (run_as_written(one, feed)[0] for one in (source, result.qdq))
    assert ErrorSums.from_arrays(want, got).sqnr_db > 30


IMAGES = {
    "MaxPool": "r = Relu (a) m = MaxPool <kernel_shape = [2,2]> (r) y = Conv (m, w)",
    "AveragePool": "r = Relu (a) m = AveragePool <kernel_shape = [2,2]> (r) y = Conv (m, w)",
    "GlobalAveragePool": "r = Relu (a) y = GlobalAveragePool (r)",
    "Pad": "r = Relu (a) m = Pad (r, pads) y = Conv (m, w)",
    "Concat": "r = Relu (a) m = Concat <axis = 2> (a, r) y = Conv (m, w)",
}


@pytest.mark.grid
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.filterwarnings("ignore")
def test_what_the_optimizer_of_onnxruntime_saves(case: str, form: str, tmp_path: Path) -> None:
    """Fused integer operators with their channels last are converted, between Transpose nodes.

    25 dB: uint8 with a zero point has up to twice the steps of symmetric int8.
    """
    proto = build(
        f"g (float[N,8,8,8] x) => (float[N,C,H,W] y) {{ a = Conv (x, w, b) {IMAGES[case]} }}",
        {"w": normal(8, 8, 3, 3, scale=0.2), "b": normal(8), "pads": ints(0, 0, 1, 1, 0, 0, 1, 1)},
    )
    feeds = [{"x": normal(4, 8, 8, 8, seed=seed)} for seed in range(4)]
    kinds = {"quant_format": QuantFormat[form], "activation_type": QuantType.QUInt8}
    quantized = by_ort(proto, feeds, tmp_path, **kinds)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(quantized.SerializeToString(), options, ["CPUExecutionProvider"])
    source = onnx.load(tmp_path / "optimized.onnx")
    assert any(a.name == "channels_last" and a.i for n in source.graph.node for a in n.attribute)
    result = convert(source)
    assert result.check is not None and result.check.passed, result.check.table()
    want, got = (run_as_written(one, feeds[0])[0] for one in (quantized, result.qdq))
    assert ErrorSums.from_arrays(want, got).sqnr_db > 25


def test_eager_models_of_torch(tmp_path: Path) -> None:
    """torch.ao's converted eager model, whose exporter computes zero points by Cast and ConstantOfShape.

    20 dB: its uint8 activations have zero points, and its weights 7 bits of use.
    """
    torch = pytest.importorskip("torch")
    ao = pytest.importorskip("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            ao.QuantStub(),
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(8 * 64, 10),
            ao.DeQuantStub(),
        ).eval()
        layers.qconfig = ao.get_default_qconfig("fbgemm")
        ao.fuse_modules(layers, [["1", "2"]], inplace=True)
        ao.prepare(layers, inplace=True)
        for _ in range(4):
            layers(torch.randn(8, 3, 8, 8))
        ao.convert(layers, inplace=True)
        torch.onnx.export(
            layers, (torch.randn(8, 3, 8, 8),), tmp_path / "m.onnx", dynamo=False, opset_version=17
        )
    source = onnx.load(tmp_path / "m.onnx")
    name = source.graph.input[0].name
    result = agree(source, {name: normal(8, 3, 8, 8)}, 20)
    assert all(row.quantized == row.total for row in result.plan.coverage())


REFUSED = {
    "arithmetic": ("t = Add (q, n)", "Add 'mid' computes with the quantized numbers of 'q'"),
    "a reduction": (
        'at = Constant <value = int64[1,1] {0}> () [mid] t = ScatterND <reduction = "max"> (q, at, n)',
        "ScatterND 'mid' reduces quantized numbers by max",
    ),
    "other scales": (
        "r = QuantizeLinear (x, s2, z) [mid] t = Concat <axis = 0> (q, r)",
        "Concat 'mid' reads quantized numbers of different scales or zero points, 'q' and 'r'",
    ),
    "an unknown operator": (
        "t = com.microsoft.QOrderedGelu (q)",
        "QOrderedGelu 'mid' has no known float form",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_real_form(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other operators between a pair are an error of one line, and nothing is written."""
    text, words = REFUSED[case]
    source = build(
        f"""g (float[4,8] x) => (float[P,6] y) {{ q = QuantizeLinear (x, s, z)
            {text if "[mid]" in text else "[mid] " + text}
            d = DequantizeLinear (t, s, z) k = DequantizeLinear (w, s) y = MatMul (d, k) }}""",
        {**scalars(np.float32, s=0.02, s2=0.03), "z": np.int8(0), "n": stored(1, 8), "w": stored(8, 6)},
        opset=18,
        **{"com.microsoft": 1},
    )
    onnx.save(source, tmp_path / "m.onnx")
    assert main(["convert", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.onnx")]) == 1
    told = capsys.readouterr().err.strip()
    assert words in told and "\n" not in told and not (tmp_path / "out.onnx").exists()


def test_findings_end_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator that the target lacks is reported, in JSON too, with exit code 1; the file is written."""
    source = build(
        """g (float[4,8] x) => (float[4,6] y) { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
            k = DequantizeLinear (w, s) m = MatMul (d, k) y = com.microsoft.QuickGelu (m) }""",
        {"s": np.float32(0.02), "z": np.int8(0), "w": stored(8, 6)},
        **{"com.microsoft": 1},
    )
    onnx.save(source, tmp_path / "m.onnx")
    line = ["convert", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.onnx")]
    assert main(line) == 1 and (tmp_path / "out.onnx").exists()
    assert "TensorRT's parser has no operator QuickGelu" in capsys.readouterr().out
    assert main([*line, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in told["check"]["findings"]] == ["operator"]
    assert main(["check", str(tmp_path / "out.onnx")]) == 1

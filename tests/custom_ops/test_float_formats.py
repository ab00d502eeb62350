"""Grids of float8, float6, float4: all codes, all 16-bit floats, against ml_dtypes, onnxruntime, ONNX."""

from __future__ import annotations

import keyword_numerics as numerics
import ml_dtypes
import numpy as np
import pytest
from builders import build
from loops import loop_over
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxfq.numerics.qtypes import QTYPES
from onnxfq.runtime import kernels

FLOATS = [name for name, q in QTYPES.items() if q.is_float]
FLOAT8 = [name for name in FLOATS if name.startswith("float8")]
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def all_halves(dtype=np.float16) -> np.ndarray:
    """Every value of a 16-bit float type."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def all_codes(qtype: str) -> np.ndarray:
    """Every code of a float format as float32."""
    codes = np.arange(1 << QTYPES[qtype].bits, dtype=np.uint8)
    return codes.view(QTYPES[qtype].dtype).astype(np.float32)


@loop_over("saturate", [True, False])
@loop_over("rounding", numerics.ROUNDINGS)
@loop_over("qtype", FLOATS)
def test_every_code_stays(qtype, rounding, saturate):
    """The numbers of a format are fixed points of every rounding, times any power of two."""
    codes = all_codes(qtype)
    for scale in (1.0, 2.0**-100, 2.0**90):
        y = numerics.both(codes * np.float32(scale), scale, qtype=qtype, rounding=rounding, saturate=saturate)
        kept = np.isfinite(codes) if saturate else ~np.isnan(codes)
        assert np.array_equal(y.view(np.uint32)[kept], (codes * np.float32(scale)).view(np.uint32)[kept])
        assert np.isnan(y[np.isnan(codes)]).all()


@pytest.mark.parametrize("qtype", FLOATS)
def test_cast_of_ml_dtypes(rng, qtype):
    """Without saturation the grid is the one of ml_dtypes' cast: all 16-bit floats, and a million float32."""
    inputs = [all_halves().astype(np.float32), all_halves(ml_dtypes.bfloat16).astype(np.float32)]
    inputs.append(rng.integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32))
    inputs.append((rng.standard_normal(200_000) * QTYPES[qtype].qmax / 2).astype(np.float32))
    for x in inputs:
        x = x[~np.isnan(x)]  # the 4- and 6-bit formats have no NaN, the cast makes it a number
        with np.errstate(all="ignore"):
            expected = x.astype(QTYPES[qtype].dtype).astype(np.float32)
            y = numerics.both(x, qtype=qtype, saturate=False)
        nan = np.isnan(expected)
        assert np.array_equal(np.isnan(y), nan)
        assert np.array_equal(y.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("saturate", [True, False], ids=["saturate", "overflow"])
@pytest.mark.parametrize("qtype", FLOAT8)
def test_onnxruntime_agrees(ops, same_bits, qtype, saturate, dtype):
    """All float16 values give onnxruntime's Q/DQ bits, as float32 and as float16."""
    x = all_halves().astype(TYPES[dtype])
    for scale in (1.0, 0.37, 20.0, 0.001):
        scale = np.asarray(scale, x.dtype)
        expected = numerics.fake_quantize(x, scale, qtype=qtype, saturate=saturate)
        actual = ops.qdq(x, scale, 0, qtype=qtype, saturate=saturate)
        compared = np.full(x.shape, True)
        if not saturate and qtype in ("float8e4m3fn", "float8e5m2"):
            # onnxruntime 1.31 without saturation, just above the largest number: e4m3fn stays finite and
            # e5m2 becomes NaN, where ONNX (and ml_dtypes) have NaN and infinity.
            low, high = (464, 496) if qtype == "float8e4m3fn" else (61440, 65536)
            with np.errstate(invalid="ignore"):  # signaling NaN
                v = np.abs(x.astype(np.float32) / np.float32(scale))
            compared = ~((v >= low) & (v < high))
        same_bits(actual[compared], expected[compared])
        same_bits(kernels.fake_quantize(x, scale, qtype=qtype, saturate=saturate), expected)
        same_bits(ops.fake_quantize(x, scale, qtype=qtype, saturate=int(saturate)), expected)


@pytest.mark.parametrize("qtype", [*FLOAT8, "float4e2m1"])
def test_onnx_reference_agrees(rng, qtype):
    """ONNX's own evaluator gives the same values for what it defines: finite x."""
    x = (rng.standard_normal(2000) * QTYPES[qtype].qmax / 3).astype(np.float32)
    text = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"
    model = build(f"g (float[N] x) => (float[N] y) {{ {text} }}", {"s": np.float32(0.37)}, opset=23, ir=11)
    model.graph.initializer.append(helper.make_tensor("z", QTYPES[qtype].onnx_type, [], [0.0]))
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert np.array_equal(numerics.both(x, 0.37, qtype=qtype), expected)


@pytest.mark.parametrize("qtype", FLOATS)
def test_overflow(qtype):
    """Saturation gives the largest finite number; else infinity or NaN, as there is; zeros keep a sign."""
    q = QTYPES[qtype]
    x = np.array([np.inf, -np.inf, 3e38, -3e38, np.nan, 0.0, -0.0], np.float32)
    y = numerics.both(x, qtype=qtype)
    assert y[:4].tolist() == [q.qmax, -q.qmax] * 2 and np.isnan(y[4])
    assert np.signbit(y[5:]).tolist() == [False, q.layout.special != "fnuz"]
    over = numerics.both(x, qtype=qtype, saturate=False)[:4]
    if q.layout.special == "ieee":
        assert over.tolist() == [np.inf, -np.inf] * 2
    elif q.layout.special == "finite":
        assert over.tolist() == [q.qmax, -q.qmax] * 2
    else:
        assert np.isnan(over).all()


def neighbours_say(v: np.ndarray, grid: np.ndarray, rounding: str) -> np.ndarray:
    """Round each v to its lower or upper neighbour in the sorted grid, by the words of the rule."""
    at = np.clip(np.searchsorted(grid, v, side="right") - 1, 0, len(grid) - 2)
    low, high = grid[at].astype(np.float64), grid[at + 1].astype(np.float64)
    middle, exact = (low + high) / 2, v.astype(np.float64)
    outer = np.where(v > 0, high, low)
    inner = np.where(v > 0, low, high)
    even = np.where((at - len(grid) // 2) % 2 == 0, low, high)  # code 0 stands in the middle of the grid
    at_half = {"half_even": even, "half_away": outer, "half_down": inner, "half_up": high}
    result = {"floor": low, "ceil": high, "truncate": inner}.get(rounding)
    if result is None:
        result = np.where(exact < middle, low, np.where(exact > middle, high, at_half[rounding]))
    return np.where(exact == low, low, np.where(exact == high, high, result))


@loop_over("rounding", numerics.ROUNDINGS)
@loop_over("qtype", FLOATS)
def test_roundings_in_words(rng, qtype, rounding):
    """Each rounding picks the neighbour it names, on points between, halves and numbers of the grid."""
    codes = all_codes(qtype)
    grid = np.unique(codes[np.isfinite(codes)])
    halves = ((grid[1:].astype(np.float64) + grid[:-1]) / 2).astype(np.float32)
    inside = rng.uniform(-QTYPES[qtype].qmax, QTYPES[qtype].qmax, 20_000).astype(np.float32)
    small = inside * np.exp(rng.uniform(-12, 0, inside.size)).astype(np.float32)
    x = np.concatenate(
        [grid, halves, np.nextafter(halves, np.inf), np.nextafter(halves, -np.inf), inside, small]
    )
    x = x.astype(np.float32)
    if rounding == "half_up":  # the sum v + 0.5 rounds, as stated
        x = x[~np.isin(x, np.nextafter(halves, -np.inf))]
        x = x[np.abs(x) > 1e-4]
    y = numerics.both(x, qtype=qtype, rounding=rounding)
    assert np.array_equal(y.astype(np.float64), neighbours_say(x, grid, rounding))

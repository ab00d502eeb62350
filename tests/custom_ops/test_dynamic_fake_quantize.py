"""DynamicFakeQuantize: NumPy = C++ kernel = operator to the bit, and what each format's source says."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from builders import build
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keyword_numerics import dynamic_fake_quantize, fake_quantize
from loops import loop_over
from onnx import TensorProto, helper

from onnxfq.numerics.qtypes import QTYPES
from onnxfq.runtime import kernels
from onnxfq.runtime.session import Session

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# qtype, scale_type, symmetric
KINDS = [
    *((qtype, "float32", True) for qtype in ("int8", "int8[-127,127]", "float8e4m3fn")),
    *((qtype, "float32", False) for qtype in ("int8", "uint4", "uint16")),
    *((qtype, "e8m0", True) for qtype in ("float8e5m2", "float8e4m3fn", "float6e2m3", "float6e3m2")),
    *((qtype, "e8m0", True) for qtype in ("float4e2m1", "int8")),
    ("float4e2m1", "e4m3", True),
]
WHERE = {
    "tensor": {},
    "axis0": {"axis": 0},
    "axis1": {"axis": 1},
    "last": {"axis": -1},
    "blocks-of-16": {"axis": -1, "block_size": 16},
    "blocks-of-32": {"axis": 2, "block_size": 32},
    "blocks-of-7": {"axis": 1, "block_size": 7},
    "rows": {"block_shape": [1, 1, -1]},
    "columns": {"block_shape": [-1, -1, 1]},
    "tiles": {"block_shape": [3, 4, 5]},
    "larger-than-x": {"block_shape": [100, 2, 1 << 62]},
}


def awkward(rng, shape=(9, 30, 70)) -> np.ndarray:
    """Normal values over decades, with zeros, subnormals, NaN and infinities among them."""
    x = rng.standard_normal(shape) * np.exp(rng.uniform(-20, 20, (*shape[:-1], 1)))
    x = x.astype(np.float32)
    x[0, 3], x[1], x[2, 0] = 0, 0, 1e-41
    x[3, 1, 4], x[4, 2, 5], x[5, :, 6], x[6, 6] = np.nan, np.inf, -np.inf, np.nan
    return x


@loop_over("dtype", TYPES)
@loop_over("where", WHERE)
@loop_over(("qtype", "scale_type", "symmetric"), KINDS)
def test_three_ways_agree(ops, rng, same_bits, qtype, scale_type, symmetric, where, dtype):
    """y, scale and zero point of every kind, granularity and type, with values that no scale likes."""
    options = {"qtype": qtype, "scale_type": scale_type, "symmetric": symmetric, **WHERE[where]}
    with np.errstate(over="ignore"):
        x = awkward(rng).astype(TYPES[dtype])
    expected = dynamic_fake_quantize(x, **options)
    for threads in (0, 1, 2):
        actual = ops.dynamic_fake_quantize(x, threads=threads, **options) if threads else None
        for a, e in zip(actual or kernels.dynamic_fake_quantize(x, **options), expected, strict=True):
            same_bits(a, e)
    y, scale, _ = expected
    assert (np.isfinite(scale) & (scale > 0)).all()
    wide = x.astype(np.float32)
    assert np.array_equal(np.isnan(y.astype(np.float32)), np.isnan(wide))
    if dtype != "float16":  # whose own range ends below what a block of larger neighbours may round it to
        assert np.isfinite(y.astype(np.float32)[~np.isnan(wide)]).all()


@settings(max_examples=100)
@given(data=st.data())
def test_kernel_matches_numpy_on_anything(same_bits, data):
    """Any values, shapes and blocks; finite x gives finite y."""
    qtype, scale_type, symmetric = data.draw(st.sampled_from(KINDS))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    x = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32)))
    blocks = data.draw(st.tuples(*(st.integers(1, 7) | st.just(-1) for _ in shape)))
    options = {"qtype": qtype, "scale_type": scale_type, "symmetric": symmetric}
    options["rounding"] = data.draw(st.sampled_from(["half_even", "floor", "half_away"]))
    if shape and data.draw(st.booleans()):
        options["block_shape"] = blocks
    expected = dynamic_fake_quantize(x, **options)
    for a, e in zip(kernels.dynamic_fake_quantize(x, **options), expected, strict=True):
        same_bits(a, e)
    assert np.isfinite(expected[0][~np.isnan(x)]).all()


@pytest.mark.grid
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0, 0.5])
def test_onnxruntime_dynamic_quantize_linear(rng, same_bits, shift, spread):
    """uint8, asymmetric, per tensor: the bits of onnxruntime's DynamicQuantizeLinear and DequantizeLinear."""
    text = "q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)"
    session = Session(build(f"g (float[N] x) => (float[N] y, float s, uint8 z) {{ {text} }}"), 1, exact=True)
    for size in (1, 17, 1000, 100_000):
        x = ((rng.standard_normal(size) + shift) * spread).astype(np.float32)
        for values in (x, np.abs(x), -np.abs(x), np.zeros_like(x)):
            y, scale, zero_point = session.run({"x": values})
            actual = kernels.dynamic_fake_quantize(values, qtype="uint8", symmetric=False)
            same_bits(actual[0], y)
            assert actual[1] == scale and actual[2] == zero_point


def mx_block(block: list[float], qtype: str) -> list[float]:
    """Quantize one block as OCP MX v1.0, section 6.3, says it, in Python floats."""
    amax = max(abs(v) for v in block)
    if amax == 0:
        return [0.0] * len(block)
    if qtype == "int8":
        emax, step_of, largest = 0, lambda v: 2.0**-6, 127 / 64
    else:
        layout = QTYPES[qtype].layout
        largest = QTYPES[qtype].qmax
        emax = math.frexp(largest)[1] - 1
        smallest = 1 - layout.bias

        def step_of(v: float) -> float:
            exponent = max(math.frexp(v)[1] - 1, smallest) if v else smallest
            return 2.0 ** (exponent - layout.mantissa_bits)

    shared = 2.0 ** min(max(math.frexp(amax)[1] - 1 - emax, -127), 127)
    result = []
    for value in block:
        v = min(max(value / shared, -largest), largest)
        result.append(round(v / step_of(v)) * step_of(v) * shared)  # round() takes halves to even
    return result


@pytest.mark.parametrize(
    "qtype", ["float8e4m3fn", "float8e5m2", "float6e2m3", "float6e3m2", "float4e2m1", "int8"]
)
def test_mx_formulas(rng, qtype):
    """Blocks of 32 of every MX format, over 60 binades and with halves, zeros and extremes."""
    x = (rng.standard_normal((300, 32)) * np.exp2(rng.integers(-126, 120, (300, 1)))).astype(np.float32)
    halves = (rng.integers(-64, 64, (100, 32)) / 16).astype(np.float32)
    extremes = [[3.4e38] * 16 + [-1e38] * 16, [0] * 32, [1e-40] * 32, [-3e38, *[1.0] * 31]]
    x = np.concatenate([x, halves, np.float32(extremes)])
    y, scale, _ = kernels.dynamic_fake_quantize(x, qtype=qtype, scale_type="e8m0", axis=-1, block_size=32)
    expected = np.array([mx_block(row, qtype) for row in x.tolist()])
    assert np.array_equal(y.astype(np.float64), expected)
    assert (np.frexp(scale)[0] == 0.5).all()  # powers of two


@pytest.mark.parametrize("given_global", [None, 0.003], ids=["global-from-x", "global-given"])
def test_nvfp4_formulas(rng, given_global):
    """Two levels: an e4m3 number for each block of 16, one float32 for the tensor."""
    x = (rng.standard_normal((64, 16)) * np.exp(rng.uniform(-4, 4, (64, 1)))).astype(np.float32)
    x[5] = 0
    shared = np.float32(np.abs(x).max() / np.float32(448 * 6) if given_global is None else given_global)
    wanted = np.abs(x).max(axis=1) / np.float32(6) / shared
    block = np.minimum(wanted, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scale = np.maximum(block, np.float32(2**-9)) * shared
    values = np.clip(x / scale[:, None], -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    options = {"qtype": "float4e2m1", "scale_type": "e4m3", "axis": -1, "block_size": 16}
    y, scales, _ = kernels.dynamic_fake_quantize(x, global_scale=given_global, **options)
    assert np.array_equal(scales.reshape(-1), scale)
    assert np.array_equal(y, values * scale[:, None])
    assert not y[5].any()


def test_scales_of_nothing(same_bits):
    """No finite value, or only zeros: the scale is 1, 2^-127 or 2^-9; zeros stay zeros."""
    rows = np.array([[0, 0], [np.nan, np.nan], [np.nan, 0], [np.inf, -np.inf]], np.float32)
    how = {"block_shape": [1, -1]}
    for kind, scale in (("float32", 1.0), ("e8m0", 2.0**-127), ("e4m3", 2.0**-9)):
        how |= {"qtype": "float8e4m3fn", "scale_type": kind}
        y, scales, zeros = kernels.dynamic_fake_quantize(rows, **how)
        assert (scales == scale).all() and not zeros.any()
        assert y[0].tolist() == [0, 0] and np.isnan(y[1]).all() and np.isnan(y[2, 0]) and y[2, 1] == 0
        assert y[3].tolist() == [448 * scale, -448 * scale]
    how |= {"qtype": "uint8", "scale_type": "float32", "symmetric": False}
    y, scales, zeros = kernels.dynamic_fake_quantize(rows, **how)
    assert (scales == 1).all() and not zeros.any()


def test_non_finite_values_do_not_move_the_scale(rng, same_bits):
    """NaN stays NaN, infinities saturate, and their neighbours are as if they were not there."""
    x = rng.standard_normal((4, 32)).astype(np.float32)
    bad = x.copy()
    bad[:, 7], bad[:, 8], bad[:, 9] = np.nan, np.inf, -np.inf
    x[:, 7:10] = 0
    for qtype, kind, symmetric in KINDS:
        options = {"qtype": qtype, "scale_type": kind, "symmetric": symmetric, "axis": -1, "block_size": 32}
        clean, broken = (kernels.dynamic_fake_quantize(v, **options) for v in (x, bad))
        same_bits(broken[1], clean[1])
        others = [i for i in range(32) if i not in (7, 8, 9)]
        same_bits(broken[0][:, others].copy(), clean[0][:, others].copy())
        assert np.isnan(broken[0][:, 7]).all() and np.isfinite(broken[0][:, 8:10]).all()


@pytest.mark.parametrize(("qtype", "scale_type", "symmetric"), KINDS)
def test_the_result_is_static_fake_quantization_with_the_scales(rng, same_bits, qtype, scale_type, symmetric):
    """The second and third output are the parameters of the first."""
    x = rng.standard_normal((6, 96)).astype(np.float32)
    options = {"qtype": qtype, "scale_type": scale_type, "symmetric": symmetric}
    y, scale, zero_point = kernels.dynamic_fake_quantize(x, axis=1, block_size=32, **options)
    grid = "int8[-127,127]" if (qtype, scale_type) == ("int8", "e8m0") else qtype
    same_bits(fake_quantize(x, scale, zero_point, qtype=grid, axis=1, block_size=32), y)


def test_one_granularity_said_in_several_ways(rng, same_bits):
    """A block as long as the axis is a row, an axis is blocks of one, a slice alone is its own tensor."""
    x = rng.standard_normal((5, 48)).astype(np.float32)
    for symmetric in (True, False):
        options = {"qtype": "int8", "symmetric": symmetric}
        rows = kernels.dynamic_fake_quantize(x, block_shape=[1, -1], **options)[0]
        same_bits(kernels.dynamic_fake_quantize(x, axis=1, block_size=48, **options)[0], rows)
        same_bits(kernels.dynamic_fake_quantize(x, axis=0, **options)[0], rows)
        for row, part in zip(rows, x, strict=True):
            same_bits(kernels.dynamic_fake_quantize(part.copy(), **options)[0], row.copy())


@loop_over("size", [*range(34), 63, 64, 65, 129, 20_000, 40_001])
def test_every_size_and_alignment(rng, fills_out, size):
    """Rows of any length at odd addresses, in place too."""
    for options in ({}, {"axis": 0, "block_size": 16}, {"axis": 0, "block_size": 32}, {"axis": 0}):
        for offset in range(3):
            source = rng.standard_normal(size + offset).astype(np.float32)[offset:]
            fills_out(kernels.dynamic_fake_quantize, dynamic_fake_quantize, source, qtype="int8", **options)


@pytest.mark.parametrize("where", [{}, {"axis": 1}, {"axis": 1, "block_size": 32}, {"axis": 0}], ids=str)
def test_threads_do_not_change_a_bit(ops, rng, same_bits, where):
    """Ranges merge by integer comparison: one thread and two agree on a tensor of many pieces."""
    x = rng.standard_normal((40, 70_000)).astype(np.float32)
    for symmetric in (True, False):
        expected = dynamic_fake_quantize(x, qtype="int8", symmetric=symmetric, **where)
        for threads in (1, 2):
            actual = ops.dynamic_fake_quantize(x, threads=threads, qtype="int8", symmetric=symmetric, **where)
            for a, e in zip(actual, expected, strict=True):
                same_bits(a, e)


def test_outputs_are_optional(ops, rng, same_bits):
    """Scale and zero_point may be left out, alone or together."""
    x = rng.standard_normal((4, 64)).astype(np.float32)
    y, scale, zero_point = dynamic_fake_quantize(x, qtype="uint8", symmetric=False, axis=0)
    attributes = {"qtype": "uint8", "symmetric": 0, "axis": 0}
    for names in (["y"], ["y", "s"], ["y", "", "z"], ["y", "s", "z"]):
        node = helper.make_node("DynamicFakeQuantize", ["x"], names, domain="onnxfq", **attributes)
        outputs = {name: TensorProto.FLOAT for name in names if name}
        results = ops.session([node], ["x"], outputs).run(None, {"x": x})
        for name, result in zip(outputs, results, strict=True):
            same_bits(result, {"y": y, "s": scale, "z": zero_point}[name])


SWITCHED = [
    {"qtype": "uint8", "symmetric": False},
    {"qtype": "int8", "scale_type": "e8m0", "axis": 1, "block_size": 32},
    {"qtype": "float4e2m1", "scale_type": "e4m3", "axis": 1, "block_size": 16, "global_scale": 0.01},
]


@pytest.mark.grid
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("options", SWITCHED, ids=lambda options: options["qtype"])
def test_enabled_switches(ops, rng, same_bits, options, enabled):
    """`enabled` false copies x to the bit, with scales of 1 and zero points of 0, of the same shapes."""
    for dtype in TYPES.values():
        x = rng.standard_normal((4, 50)).astype(dtype)
        x[0, :3] = np.nan, np.inf, -0.0
        actual = ops.dynamic_fake_quantize(x, enabled=enabled, **options)
        expected = dynamic_fake_quantize(x, **options)
        if not enabled:
            expected = x, np.ones_like(expected[1]), np.zeros_like(expected[2])
        for a, e in zip(actual, expected, strict=True):
            same_bits(a, e)

"""x of float16 and bfloat16: every value, NumPy = kernel = operator = onnxruntime's Q/DQ."""

from __future__ import annotations

import keyword_numerics as numerics
import ml_dtypes
import numpy as np
import pytest
from loops import loop_over

from onnxfq.numerics.qtypes import QTYPES
from onnxfq.runtime import kernels

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TYPES = ["int2", "uint4", "int8", "uint8", "int16", *(n for n, q in QTYPES.items() if q.is_float)]


def all_values(dtype: str) -> np.ndarray:
    """Every value of a 16-bit float type, NaN and infinities included."""
    return np.arange(1 << 16, dtype=np.uint16).view(HALVES[dtype])


@loop_over("scale", [1.0, 0.37, 0.0131, 300.0])
@loop_over("qtype", TYPES)
@loop_over("dtype", HALVES)
def test_every_value(same_bits, dtype, qtype, scale):
    """Kernel and NumPy agree on all 65,536 values; the result is float32 arithmetic, rounded once."""
    x = all_values(dtype)
    zero_point = 2 if qtype.startswith("u") else 0
    y = kernels.fake_quantize(x, scale, zero_point, qtype=qtype)
    same_bits(y, numerics.fake_quantize(x, scale, zero_point, qtype=qtype))
    with np.errstate(all="ignore"):
        once = kernels.fake_quantize(x.astype(np.float32), scale, zero_point, qtype=qtype).astype(x.dtype)
    same_bits(y, once)


@pytest.mark.parametrize("param_type", ["float32", "same"])
@pytest.mark.parametrize("zero_point", [None, 3], ids=["no-zero-point", "zero-point"])
@pytest.mark.parametrize("dtype", HALVES)
def test_operator_takes_both_types_of_parameters(ops, rng, same_bits, dtype, zero_point, param_type):
    """Scale and zero point may be float32 or of x's type; a scale for each index of an axis too."""
    x = rng.standard_normal((40, 500)).astype(HALVES[dtype])
    given = np.dtype(np.float32 if param_type == "float32" else HALVES[dtype])
    for scale, axis in ((np.array(0.0371), None), (np.exp(rng.uniform(-4, 0, 40)), 0)):
        scale = scale.astype(given)
        zeros = None if zero_point is None else np.full(scale.shape, zero_point)
        y = ops.fake_quantize(x, scale, zeros, qtype="int8", axis=axis, param_type=given, threads=2)
        expected = numerics.fake_quantize(x, scale, zero_point or 0, qtype="int8", axis=axis)
        same_bits(y, expected)


@pytest.mark.parametrize("qtype", ["int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16"])
def test_onnxruntime_agrees_on_float16(ops, same_bits, qtype):
    """Onnxruntime computes float16 Q/DQ in float32 and rounds once, and so does the kernel."""
    x = all_values("float16")
    # Not compared: +infinity, which onnxruntime 1.31 converts to int32 before it saturates, and NaN.
    x = x[np.isfinite(x) | (x < 0)]
    for scale in (0.37, 0.0131, 20.0):
        scale = np.float16(scale)
        expected = ops.qdq(x, scale, 1, qtype=qtype)
        same_bits(numerics.fake_quantize(x, scale, 1, qtype=qtype), expected)
        same_bits(ops.fake_quantize(x, scale, 1, qtype=qtype, param_type=np.float16), expected)


@loop_over("size", [0, 1, 15, 16, 17, 33, 2047, 2048, 2049, 5000])
@loop_over("dtype", HALVES)
def test_sizes_around_the_conversion_buffer(rng, fills_out, dtype, size):
    """Parts of 2,048 elements join without a seam, in place and at odd addresses, with rows cut anywhere."""
    for offset in (0, 1, 3):
        source = rng.standard_normal(size + offset).astype(HALVES[dtype])[offset:]
        fills_out(kernels.fake_quantize, numerics.fake_quantize, source, scale=0.1, qtype="int8")


def test_switched_off_copies(ops, same_bits):
    """`enabled` false copies 16-bit elements as they are."""
    for dtype in HALVES:
        x = all_values(dtype)
        x = x[~np.isnan(x.astype(np.float32))]
        same_bits(ops.fake_quantize(x, 0.1, enabled=False, qtype="int8"), x)

"""x of 16-bit types, in any layout, and in a process without subnormal numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keyword_numerics as numerics
import ml_dtypes
import numpy as np
import pytest
from loops import loop_over
from numpy.typing import NDArray

from onnxfq.errors import SpecError
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


TINY = np.random.default_rng(0).permutation(np.linspace(-3e-38, 3e-38, 70001)).astype(np.float32)
SCALE = np.float32(3e-39)
TOO_SMALL = np.float32(1e-40)
NORMAL = np.float32(2e-38)  # torch itself reads a subnormal scale as 0; values of x are subnormal still


@pytest.fixture
def flushed() -> Iterator[None]:
    """A process that reads and writes subnormal numbers as 0."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always computes with subnormal numbers")
    assert not np.array([1e-40], np.float32)[0] > 0
    yield
    torch.set_flush_denormal(False)


DIVIDED = kernels.fake_quantize(TINY, SCALE, 0, qtype="int8").tobytes()
AS_TORCH = kernels.fake_quantize(TINY, NORMAL, 0, qtype="int8", arithmetic="reciprocal").tobytes()
RANGE = kernels.observe(TINY)[0].tobytes()


def test_kernels_keep_subnormal_numbers(flushed: None) -> None:
    """One thread, by the C functions."""
    assert kernels.fake_quantize(TINY, SCALE, 0, qtype="int8").tobytes() == DIVIDED
    assert kernels.observe(TINY)[0].tobytes() == RANGE


def test_threads_keep_subnormal_numbers(flushed: None) -> None:
    """Threads that are started here have the setting too."""
    torch = pytest.importorskip("torch")
    from onnxfq.torch import fake_quantize_per_tensor_affine

    found = fake_quantize_per_tensor_affine(torch.from_numpy(TINY), torch.tensor(NORMAL), 0, -128, 127)
    assert found.numpy().tobytes() == AS_TORCH


@pytest.mark.parametrize("threads", [1, 2])
def test_operators_keep_subnormal_numbers(ops, threads: int, flushed: None) -> None:
    """The threads of a session that is made here have the setting too."""
    assert ops.fake_quantize(TINY, SCALE, qtype="int8", threads=threads).tobytes() == DIVIDED


def test_a_small_scale_is_told_as_what_it_is(ops, flushed: None) -> None:
    """The error names the rule that the scale breaks."""
    with pytest.raises(Exception, match="too small to have a finite reciprocal; use arithmetic 'divide'"):
        ops.fake_quantize(TINY, TOO_SMALL, qtype="int8", arithmetic="reciprocal")


Array = NDArray[Any]


def misaligned(x: Array) -> Array:
    """A view with the values of `x` that begins at an odd address."""
    memory = np.zeros(x.nbytes + 1, np.uint8)
    made = memory[1:].view(x.dtype).reshape(x.shape)
    made[...] = x
    assert not made.flags.aligned or not x.size
    return made


def locked(x: Array) -> Array:
    """A copy that cannot be written."""
    made = x.copy()
    made.flags.writeable = False
    return made


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "misaligned": misaligned,
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "read-only": locked,
    "misaligned and backwards": lambda x: misaligned(x[..., ::-1].copy())[..., ::-1],
}
SHAPES = ((3, 5, 7), (1,), (0, 4), ())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_read_any_layout(layout: str, dtype: type) -> None:
    """Bits do not depend on where and in which order x, scale and zero point are stored."""
    change = LAYOUTS[layout]
    for shape in SHAPES:
        if not shape and layout not in ("misaligned", "read-only"):
            continue  # a scalar has no order
        x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        scale = np.linspace(0.1, 0.2, shape[0] if shape else 1, dtype=np.float32)
        how: dict[str, Any] = {"qtype": "int8", "axis": 0} if shape else {"qtype": "int8"}
        zero = np.ones_like(scale)
        found = kernels.fake_quantize(change(x), change(scale), change(zero), **how)
        assert found.tobytes() == kernels.fake_quantize(x, scale, zero, **how).tobytes()
        both = (kernels.dynamic_fake_quantize(one, symmetric=False, **how) for one in (change(x), x))
        for one, other in zip(*both, strict=True):
            assert one.shape == other.shape and one.tobytes() == other.tobytes()
        if dtype is np.float32:
            for one, other in zip(kernels.observe(change(x)), kernels.observe(x), strict=True):
                np.testing.assert_array_equal(one, other)


def test_numbers_of_another_byte_order() -> None:
    """Scales are converted; for x, whose type says how it is rounded, one line tells what to do."""
    x, scale = np.linspace(-1, 1, 12, dtype=np.float32), np.asarray(0.1, np.float32)
    swapped = scale.astype(">f4")
    same = kernels.fake_quantize(x, scale, qtype="int8")
    np.testing.assert_array_equal(kernels.fake_quantize(x, swapped, qtype="int8"), same)
    for call in (
        lambda: kernels.fake_quantize(x.astype(">f4"), scale, qtype="int8"),
        lambda: kernels.dynamic_fake_quantize(x.astype(">f4"), qtype="int8"),
        lambda: kernels.observe(x.astype(">f4")),
    ):
        with pytest.raises(SpecError, match=r"x must be float32.*got >f4; convert it with astype"):
            call()


@pytest.mark.parametrize("layout", ["misaligned", "every second", "read-only"])
def test_a_result_that_kernels_cannot_write(layout: str) -> None:
    """An `out` that is not plain memory is refused."""
    x = np.linspace(-1, 1, 12, dtype=np.float32)
    for kernel in (kernels.fake_quantize, kernels.dynamic_fake_quantize):
        given = (x, 0.1) if kernel is kernels.fake_quantize else (x,)
        with pytest.raises(SpecError, match="writable, contiguous, aligned"):
            kernel(*given, qtype="int8", out=LAYOUTS[layout](x))

"""The C++ kernels on NumPy arrays, without ONNX Runtime.

Single-threaded; the GIL is released while a kernel runs, so several may run in threads of their own.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import RuntimeLibraryError, SpecError
from onnxfq.numerics import Float32Array, check_params, float32_array
from onnxfq.package_files import custom_ops_library
from onnxfq.qtypes import QType, qtype_by_name

Observation = tuple[Float32Array, NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]

_ERROR_BYTES = 512


@cache
def _library() -> ctypes.CDLL:
    path = custom_ops_library()
    try:
        library = ctypes.CDLL(str(path))
        library.onnxfq_bin_count.restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        raise RuntimeLibraryError(f"{path} cannot be used: {error}; run `pip install .` again") from error
    return library


def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    qtype: QType | str,
    axis: int | None = None,
    block_size: int | None = None,
    rounding: str = "half_even",
    arithmetic: str = "divide",
    out: Float32Array | None = None,
) -> Float32Array:
    """Return what `numerics.fake_quantize` returns, to the bit, at the speed of memory.

    out: where to write, contiguous float32 of x's shape, x itself or apart from x.
    Raises SpecError when a parameter breaks its rule.
    """
    qtype = qtype_by_name(qtype) if isinstance(qtype, str) else qtype
    values = np.ascontiguousarray(float32_array(x)).reshape(np.shape(x))
    scales, zero_points = check_params(scale, zero_point, qtype, rounding, arithmetic)
    scales, zero_points = _same_shape(scales, zero_points)
    if axis is None and scales.size > 1 and (block_size or (scales.ndim == 1 and values.ndim > 1)):
        raise SpecError(f"scale of shape {list(scales.shape)} without an axis; give the axis it runs along")
    result = np.empty_like(values) if out is None else _checked_out(out, values)
    _call(
        "onnxfq_fake_quantize",
        _pointer(values),
        _pointer(result),
        *_shape(values),
        _pointer(scales),
        _pointer(zero_points),
        *_shape(scales),
        qtype.name.encode(),
        ctypes.c_int64(0 if axis is None else axis),
        ctypes.c_int64(block_size or 0),
        rounding.encode(),
        arithmetic.encode(),
    )
    return result


def observe(x: ArrayLike, *, histogram: bool = True) -> Observation:
    """Return the statistics of x as operator `Observe` gives them: range, counts, bins, bin_counts.

    x: float32 of any shape. range: float32 [2], minimum and maximum of the finite values, (inf, -inf) when
    there is none. counts: int64 [4], elements, NaN, infinities, zeros. bins: int32 [K], ascending, the
    leading 15 bits of the floats; bin_counts: int64 [K], how many finite values share them.
    """
    values = np.ascontiguousarray(float32_array(x))
    room = int(_library().onnxfq_bin_count()) if histogram else 0
    bounds = np.empty(2, np.float32)
    counts = np.empty(4, np.int64)
    bins = np.empty(room, np.int32)
    bin_counts = np.empty(room, np.int64)
    used = ctypes.c_int64()
    _call(
        "onnxfq_observe",
        _pointer(values),
        ctypes.c_int64(values.size),
        ctypes.c_int(int(histogram)),
        _pointer(bounds),
        _pointer(counts),
        _pointer(bins),
        _pointer(bin_counts),
        ctypes.byref(used),
    )
    return bounds, counts, bins[: used.value].copy(), bin_counts[: used.value].copy()


def _call(function: str, *arguments: Any) -> None:
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if getattr(_library(), function)(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)) != 0:
        raise SpecError(error.value.decode())


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _shape(array: NDArray[Any]) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.c_size_t]:
    return (ctypes.c_int64 * array.ndim)(*array.shape), ctypes.c_size_t(array.ndim)


def _same_shape(scales: Float32Array, zero_points: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return both contiguous and of one shape: either may be a single value for all of the other."""
    shape = zero_points.shape if scales.size == 1 else scales.shape
    if zero_points.size not in (1, scales.size) and scales.size != 1:
        raise SpecError(
            f"zero_point of shape {list(zero_points.shape)} does not fit scale of shape "
            f"{list(scales.shape)}; give one, or one for each scale"
        )
    if scales.size == 1:
        return np.full(shape, scales.flat[0], np.float32), np.ascontiguousarray(zero_points)
    if zero_points.size == 1:
        return np.ascontiguousarray(scales), np.full(shape, zero_points.flat[0], np.float32)
    return np.ascontiguousarray(scales), np.ascontiguousarray(zero_points)


def _checked_out(out: Float32Array, x: Float32Array) -> Float32Array:
    flags = out.flags
    if out.dtype != np.float32 or out.shape != x.shape or not (flags.c_contiguous and flags.writeable):
        raise SpecError(
            f"out must be a writable, contiguous float32 array of shape {list(x.shape)}, "
            f"got {out.dtype} {list(out.shape)}"
        )
    if out.ctypes.data != x.ctypes.data and np.may_share_memory(out, x):
        raise SpecError("out overlaps x in part; give x itself or an array apart from it")
    return out

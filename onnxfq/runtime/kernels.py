"""C++ kernels on NumPy arrays, without ONNX Runtime.

Single-threaded on the CPU; kernels release the GIL, so that threads can run several at once. On "cuda" the
arrays are copied to the GPU and back: for checks, not for speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.calibration.statistics import empty_state
from onnxfq.calibration.statistics.state import read_state
from onnxfq.errors import SpecError
from onnxfq.numerics.affine import as_qtype, check_names, float32_array, float_array
from onnxfq.numerics.block_scales import check_rule
from onnxfq.numerics.float_types import FLOAT_DTYPES
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.rounding import Float32Array
from onnxfq.runtime.c_api import c_blocks, c_elements, c_library, c_shape
from onnxfq.runtime.devices import Device, Place, open_place

Observation = tuple[Float32Array, NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]


def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    qtype: QType | str,
    axis: int | None = None,
    block_size: int | None = None,
    block_shape: Sequence[int] | None = None,
    rounding: str = "half_even",
    arithmetic: str = "divide",
    saturate: bool = True,
    out: NDArray[Any] | None = None,
    device: Device = "cpu",
) -> NDArray[Any]:
    """Return the result of `numerics.affine.fake_quantize`, bit for bit, at the speed of memory.

    Parameters are the same as there; `axis`, `block_size` and `block_shape` make the `Granularity`. `out` is
    the contiguous array to write, of x's type and shape: x itself or memory apart from x. `device` is "cpu"
    or "cuda".
    Raises SpecError for a parameter that breaks its rule, RuntimeLibraryError without such a device.
    """
    qtype = as_qtype(qtype)
    values = _readable(float_array(x))
    check_names(rounding=rounding, arithmetic=arithmetic)
    scales, zero_points = _params(scale, zero_point)
    needs_axis = block_size or (scales.ndim == 1 and values.ndim > 1)
    if axis is None and block_shape is None and scales.size > 1 and needs_axis:
        raise SpecError(f"scale of shape {list(scales.shape)} without an axis; give the axis it runs along")
    result = np.empty_like(values) if out is None else _check_out(out, values)
    with open_place(device) as place:
        place.call(
            "fake_quantize",
            _elements(place, values, result),
            _pointer(scales),
            None if zero_points is None else _pointer(zero_points),
            *c_shape(scales.shape),
            qtype.name.encode(),
            c_blocks(axis, block_size, block_shape),
            rounding.encode(),
            arithmetic.encode(),
            ctypes.c_int64(int(saturate)),
        )
    return result


def dynamic_fake_quantize(
    x: ArrayLike,
    *,
    qtype: QType | str,
    axis: int | None = None,
    block_size: int | None = None,
    block_shape: Sequence[int] | None = None,
    symmetric: bool = True,
    scale_type: str = "float32",
    global_scale: float | None = None,
    rounding: str = "half_even",
    out: NDArray[Any] | None = None,
    device: Device = "cpu",
) -> tuple[NDArray[Any], Float32Array, Float32Array]:
    """Return y, scale and zero_point of `numerics.block_scales.dynamic_fake_quantize`, bit for bit.

    `out`, `device` and errors are as in `fake_quantize`.
    """
    qtype = as_qtype(qtype)
    check_names(rounding=rounding)
    check_rule(qtype, scale_type, symmetric, global_scale)
    values = _readable(float_array(x))
    params = Layout(Granularity.of(axis, block_size, block_shape), values.shape).scale_shape
    scale = np.empty(params, np.float32)
    zero_point = np.zeros(params, np.float32)
    result = np.empty_like(values) if out is None else _check_out(out, values)
    with open_place(device) as place:
        place.call(
            "dynamic_fake_quantize",
            _elements(place, values, result),
            ctypes.c_void_p(place.written(scale)),
            None if symmetric else ctypes.c_void_p(place.written(zero_point)),
            ctypes.c_int64(scale.size),
            qtype.name.encode(),
            c_blocks(axis, block_size, block_shape),
            rounding.encode(),
            scale_type.encode(),
            ctypes.c_int64(int(symmetric)),
            ctypes.c_float(0 if global_scale is None else global_scale),
        )
    return result, scale, zero_point


def observe(x: ArrayLike, *, histogram: bool = True, device: Device = "cpu") -> Observation:
    """Return the statistics of x as operator `Observe` computes them: range, counts, bins, bin_counts.

    range is float32 [2], minimum and maximum of the finite values, (inf, -inf) without any. counts is int64
    [4]: elements, NaN, infinities, zeros. bins is int32 [K], ascending, the leading 15 bits of the floats;
    bin_counts is int64 [K], the number of finite values in each bin.

    Args:
        x: float32 of any shape.
        histogram: whether bins are counted.
        device: as in `fake_quantize`, errors too.
    """
    values = _readable(float32_array(x))
    if device == "cuda":
        return _observe_on_gpu(values, histogram)
    room = int(c_library().onnxfq_bin_count()) if histogram else 0
    bounds = np.empty(2, np.float32)
    counts = np.empty(4, np.int64)
    bins = np.empty(room, np.int32)
    bin_counts = np.empty(room, np.int64)
    used = ctypes.c_int64()
    with open_place(device) as place:
        place.call(
            "observe",
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


def _observe_on_gpu(values: NDArray[np.float32], histogram: bool) -> Observation:
    state = empty_state(histogram)
    with open_place("cuda") as place:
        x, merged = ctypes.c_void_p(place.read(values)), ctypes.c_void_p(place.updated(state))
        count, bins = ctypes.c_int64(values.size), ctypes.c_int(int(histogram))
        kind = ctypes.c_int32(FLOAT_DTYPES.index(values.dtype))
        place.call("merge_statistics", x, kind, count, merged, bins)
    limits, counts, keys, bin_counts = read_state(state)
    return limits, counts, keys, bin_counts


def _readable(x: ArrayLike, dtype: Any = None) -> NDArray[Any]:
    """Return `x` as the kernels read it: contiguous, and each element at a multiple of its size."""
    return np.require(x, dtype, ["C_CONTIGUOUS", "ALIGNED"])


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _elements(place: Place, x: NDArray[Any], y: NDArray[Any]) -> Any:
    return c_elements(place.read(x), place.written(y), x.shape, FLOAT_DTYPES.index(x.dtype))


def _params(scale: ArrayLike, zero_point: ArrayLike) -> tuple[Float32Array, Float32Array | None]:
    """Return both as the kernels take them: contiguous and of one shape, None for no zero point.

    Either may be a single value for all of the other. The kernels check the values.
    """
    with np.errstate(over="ignore", under="ignore"):
        scales, zero_points = _readable(scale, np.float32), _readable(zero_point, np.float32)
    if zero_points.size == 1 and zero_points.flat[0] == 0:
        return scales, None
    if zero_points.size not in (1, scales.size) and scales.size != 1:
        raise SpecError(
            f"zero_point of shape {list(zero_points.shape)} does not fit scale of shape "
            f"{list(scales.shape)}; give one, or one for each scale"
        )
    if scales.size == 1:
        return np.full(zero_points.shape, scales.flat[0], np.float32), zero_points
    if zero_points.size == 1:
        return scales, np.full(scales.shape, zero_points.flat[0], np.float32)
    return scales, zero_points


def _check_out(out: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    flags = out.flags
    ready = flags.c_contiguous and flags.aligned and flags.writeable
    if out.dtype != x.dtype or out.shape != x.shape or not ready:
        raise SpecError(
            f"out must be a writable, contiguous, aligned {x.dtype} array of shape {list(x.shape)}, "
            f"got {out.dtype} {list(out.shape)}"
        )
    if out.ctypes.data != x.ctypes.data and np.may_share_memory(out, x):
        raise SpecError("out overlaps x in part; give x itself or an array apart from it")
    return out

"""Quantization arithmetic in NumPy: the truth that the kernels are tested against, bit for bit.

All arithmetic is float32; x of float16 or bfloat16 is converted first and the result rounded back once, as
ONNX Runtime's QuantizeLinear and DequantizeLinear do. The C++ twin is numeric_core.h.

    quantize       q = clamp(round(x / scale) + zero_point, qmin, qmax)
    dequantize     y = (q - zero_point) * scale
    fake_quantize  y = scale * (clamp(round(x / scale), qmin - zero_point, qmax - zero_point) + 0)
      fractions    y = scale * (clamp(round(x / scale + zero_point), qmin, qmax) - zero_point)
      float types  y = scale * round(x / scale), see float_grid.py

Source: ONNX QuantizeLinear and DequantizeLinear. Adding 0 turns -0 into +0, as the integers in between do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.numerics.float_types import FLOAT_DTYPES
from onnxfq.numerics.granularity import normalize_axis
from onnxfq.numerics.qtypes import QType, qtype_by_name
from onnxfq.numerics.rounding import ROUNDINGS, Float32Array
from onnxfq.numerics.small_floats import round_to_float_grid


def _divide(x: Float32Array, scale: Float32Array) -> Float32Array:
    return x / scale


def _reciprocal(x: Float32Array, scale: Float32Array) -> Float32Array:
    return x * (np.float32(1) / scale)


# How x is measured in steps: divide is that of ONNX, reciprocal that of torch, which rounds
# 1 / scale to float32 first. torch makes NaN the lowest value of the grid; here NaN stays NaN in both.
ARITHMETICS: dict[str, Callable[[Float32Array, Float32Array], Float32Array]] = {
    "divide": _divide,
    "reciprocal": _reciprocal,
}


# What x may be; fake quantization returns the same.
FLOAT_TYPES = tuple(FLOAT_DTYPES.values())


def expand_params(
    param: ArrayLike,
    shape: Sequence[int],
    axis: int | None = None,
    block_size: int | None = None,
    block_shape: Sequence[int] | None = None,
) -> NDArray[Any]:
    """Return `param` (a scale or zero point) repeated to `shape`, the shape of x.

    | param                      | element j of x uses                                      |
    |----------------------------|----------------------------------------------------------|
    | one element, any rank      | that                                                     |
    | rank 1, with `axis`        | param[j[axis]]                                           |
    | rank of x                  | param[i], i[d] = j[d] // ceil(shape[d] / param.shape[d]) |
    | rank of x, `block_size`    | the same, but blocks of `block_size` along `axis`        |
    | rank of x, `block_shape`   | param[i], i[d] = j[d] // block_shape[d], -1: whole       |

    For x of rank 1 the second and the third row agree. The last block may be short.
    Raises SpecError when the shapes do not fit; both are named.
    """
    values = np.asarray(param)
    shape = tuple(shape)
    if block_shape is not None:
        return _expand_blocks(values, shape, block_shape, block_size)
    if values.size == 1:
        return np.broadcast_to(values.reshape(()), shape)
    per_axis = values.ndim == 1 and not block_size and len(shape) != 1
    at = None
    if per_axis or block_size:
        if axis is None:
            raise SpecError(f"{_fit(values, shape)} without an axis; give the axis the values run along")
        at = normalize_axis(axis, len(shape))
    if per_axis:
        assert at is not None
        if values.shape[0] != shape[at]:
            raise SpecError(f"{_fit(values, shape)} along axis {at}; give {shape[at]} values or another axis")
        values = values.reshape([-1 if d == at else 1 for d in range(len(shape))])
    if values.ndim != len(shape):
        raise SpecError(
            f"{_fit(values, shape)}; give one value, one per index of axis, or as many dimensions as x"
        )
    for d, (size, params) in enumerate(zip(shape, values.shape, strict=True)):
        if per_axis and d != at:
            continue
        block = block_size if block_size and d == at else max(-(-size // max(params, 1)), 1)
        if -(-size // block) != params and not (size == 0 and params <= 1):
            raise SpecError(
                f"{_fit(values, shape)}: dimension {d} in blocks of {block} needs {-(-size // block)} values"
            )
        if params != 1 and params != size:
            values = repeat_blocks(values, block, d, size)
    return np.broadcast_to(values, shape)


def repeat_blocks(param: NDArray[Any], block: int, axis: int, size: int) -> NDArray[Any]:
    """Return `param` with each entry along `axis` repeated `block` times, cut to `size` entries."""
    return np.repeat(param, block, axis=axis).take(range(size), axis=axis)


def _expand_blocks(
    values: NDArray[Any], shape: tuple[int, ...], block_shape: Sequence[int], block_size: int | None
) -> NDArray[Any]:
    needed = block_counts(shape, block_shape, block_size)
    if values.shape != needed:
        raise SpecError(f"{_fit(values, shape)}: blocks of {list(block_shape)} need {list(needed)}")
    for d, block in enumerate(block_shape):
        if values.shape[d] > 1:
            values = repeat_blocks(values, block, d, shape[d])
    return np.broadcast_to(values, shape)


def block_counts(
    shape: Sequence[int], block_shape: Sequence[int], block_size: int | None = None
) -> tuple[int, ...]:
    """Return how many blocks of `block_shape` lie along each dimension of `shape`, the last one cut short.

    block_shape: one size for each dimension, -1 for the whole of it. Raises SpecError when it is not that, or
    when block_size is given beside it.
    """
    if block_size:
        raise SpecError("block_size and block_shape are both given; give one")
    if len(block_shape) != len(shape):
        raise SpecError(
            f"block_shape {list(block_shape)} must have one size for each dimension of x {list(shape)}"
        )
    if any(block < 1 and block != -1 for block in block_shape):
        raise SpecError(
            f"block_shape {list(block_shape)} must hold sizes of at least 1, or -1 for a whole dimension"
        )
    return tuple(1 if b == -1 else -(-n // b) for n, b in zip(shape, block_shape, strict=True))


def _fit(values: NDArray[Any], shape: tuple[int, ...]) -> str:
    return f"parameter of shape {list(values.shape)} does not fit x of shape {list(shape)}"


def quantize(
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
) -> NDArray[Any]:
    """Return the numbers of `qtype` nearest to x, as an array of `qtype.dtype` and x's shape.

    x: float32, float16 or bfloat16. scale, zero_point: see `expand_params`. rounding, arithmetic: names in
    `ROUNDINGS` and `ARITHMETICS`. Values outside the grid saturate; NaN, which no integer can hold, becomes
    zero_point. Raises SpecError when a parameter breaks its rule.
    """
    qtype = as_qtype(qtype)
    x = float_array(x).astype(np.float32)
    scale, zero_point = check_params(scale, zero_point, qtype, rounding, arithmetic)
    v = in_steps(x, expand_params(scale, x.shape, axis, block_size, block_shape), arithmetic)
    if qtype.is_float:
        codes: NDArray[Any] = round_to_float_grid(v, qtype, rounding).astype(qtype.dtype)
        return codes
    steps = _rounded(v, rounding)
    blocks = block_shape if np.ndim(zero_point) else None  # a single 0 goes with any scale
    offset = expand_params(zero_point, x.shape, axis, block_size, blocks)
    # Limited before the zero point is added: a float32 sum of a large number would round.
    steps = np.clip(steps, qtype.qmin - offset, qtype.qmax - offset)
    integers = np.where(np.isnan(steps), np.float32(0), steps) + offset
    result: NDArray[Any] = integers.astype(np.int32).astype(qtype.dtype)
    return result


def dequantize(
    q: NDArray[Any],
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    axis: int | None = None,
    block_size: int | None = None,
) -> Float32Array:
    """Return the float32 values that integers `q` stand for: (q - zero_point) * scale.

    scale, zero_point: see `expand_params`. Raises SpecError when a scale is not finite and positive.
    """
    integers = np.asarray(q).astype(np.float32)
    scale = _check_scale(scale)
    offset = expand_params(np.asarray(zero_point).astype(np.float32), integers.shape, axis, block_size)
    with np.errstate(over="ignore", under="ignore"):
        result: Float32Array = (integers - offset) * expand_params(scale, integers.shape, axis, block_size)
    return result


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
) -> NDArray[Any]:
    """Return x rounded to the grid of `qtype`, of x's type and shape.

    Parameters and errors as in `quantize`; a zero point may be a fraction. Values outside the grid saturate,
    infinities too; saturate False makes them the infinity or NaN of a float type. NaN stays NaN. -0 becomes
    +0, but for float types that have it. With arithmetic `divide` and integer zero points this is ONNX
    Runtime's QuantizeLinear and DequantizeLinear.
    """
    qtype = as_qtype(qtype)
    given = float_array(x)
    values = given.astype(np.float32)
    scale, zero_point = check_params(scale, zero_point, qtype, rounding, arithmetic, fractions=True)
    steps_of = expand_params(scale, values.shape, axis, block_size, block_shape)
    v = in_steps(values, steps_of, arithmetic)
    if qtype.is_float:
        rounded = round_to_float_grid(v, qtype, rounding, saturate)
    else:
        blocks = block_shape if np.ndim(zero_point) else None  # a single 0 goes with any scale
        at = expand_params(zero_point, values.shape, axis, block_size, blocks)
        # A fraction is added before rounding; integers limit the steps instead: no sum, no second rounding.
        offset = at if (zero_point != np.floor(zero_point)).any() else np.zeros_like(at)
        low, high = qtype.qmin - (at - offset), qtype.qmax - (at - offset)
        rounded = _rounded(np.clip(v + offset, low, high), rounding) + np.float32(0) - offset
    with np.errstate(over="ignore", under="ignore"):
        result: NDArray[Any] = (rounded * steps_of).astype(given.dtype)
    return result


def in_steps(x: Float32Array, scale: Float32Array, arithmetic: str = "divide") -> Float32Array:
    """Return x measured in steps of `scale`, not rounded: a name in `ARITHMETICS` tells how."""
    with np.errstate(all="ignore"):  # an overflow to infinity saturates later, NaN is passed on
        return ARITHMETICS[arithmetic](x, scale)


def _rounded(v: Float32Array, rounding: str) -> Float32Array:
    with np.errstate(all="ignore"):
        return ROUNDINGS[rounding](v)


def as_qtype(qtype: QType | str) -> QType:
    """Return `qtype`, looked up when it is a name. Raises SpecError when there is none of that name."""
    return qtype_by_name(qtype) if isinstance(qtype, str) else qtype


def float_array(x: ArrayLike) -> NDArray[Any]:
    """Return x as an array of one of `FLOAT_TYPES`. Raises SpecError: converting would hide a rounding."""
    values = np.asarray(x)
    if values.dtype not in FLOAT_TYPES:
        raise SpecError(
            f"x must be float32, float16 or bfloat16, got {values.dtype}; "
            "convert it with astype(numpy.float32)"
        )
    return values


def float32_array(x: ArrayLike) -> Float32Array:
    """Return x as an array. Raises SpecError when it is not float32: converting would hide a rounding."""
    values = np.asarray(x)
    if values.dtype != np.float32:
        raise SpecError(f"x must be float32, got {values.dtype}; convert it with astype(numpy.float32)")
    return values


def check_names(**names: str) -> None:
    """Raise SpecError unless rounding and arithmetic are known."""
    choices: dict[str, Collection[str]] = {"rounding": ROUNDINGS, "arithmetic": ARITHMETICS}
    for kind, name in names.items():
        known = choices[kind]
        if name not in known:
            raise SpecError(f"unknown {kind} {name!r}{nearest(name, known)}")


def check_params(
    scale: ArrayLike,
    zero_point: ArrayLike,
    qtype: QType,
    rounding: str,
    arithmetic: str,
    fractions: bool = False,
) -> tuple[Float32Array, Float32Array]:
    """Return scale and zero_point as float32 arrays of any shape.

    Raises SpecError unless every scale is finite and positive, every zero point a number of `qtype`, an
    integer unless `fractions`, 0 for float types, and rounding and arithmetic are known.
    """
    check_names(rounding=rounding, arithmetic=arithmetic)
    scales = _check_scale(scale)
    if arithmetic == "reciprocal":
        with np.errstate(over="ignore"):
            endless = np.isinf(np.float32(1) / scales)
        if endless.any():
            raise SpecError(
                f"scale {scales[endless].flat[0]} is too small to have a finite reciprocal; "
                "use arithmetic 'divide'"
            )
    given = np.asarray(zero_point)
    zero_points = given.astype(np.float32)
    if qtype.is_float:
        wrong = zero_points != 0
        rule = "0 for a float type"
    else:
        inside = (zero_points >= qtype.qmin) & (zero_points <= qtype.qmax)
        wrong = ~(inside & (fractions | (zero_points == np.floor(zero_points))))
        rule = f"{'a number' if fractions else 'an integer'} in [{qtype.qmin}, {qtype.qmax}] for {qtype}"
    if wrong.any():
        raise SpecError(f"zero_point must be {rule}, found {given[wrong].flat[0]}")
    return scales, zero_points


def _check_scale(scale: ArrayLike) -> Float32Array:
    given = np.asarray(scale)
    with np.errstate(over="ignore", under="ignore"):
        scales: Float32Array = given.astype(np.float32)
    wrong = ~(np.isfinite(scales) & (scales > 0))
    if wrong.any():
        raise SpecError(f"scale must be finite and positive in float32, found {given[wrong].flat[0]}")
    return scales

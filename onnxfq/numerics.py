"""Quantization arithmetic in NumPy: the truth that the kernels are tested against, bit for bit.

All arithmetic is float32. The C++ twin is custom_ops/include/onnxfq/numeric_core.h.

    quantize       q = clamp(round(x / scale) + zero_point, qmin, qmax)
    dequantize     y = (q - zero_point) * scale
    fake_quantize  y = scale * (clamp(round(x / scale), qmin - zero_point, qmax - zero_point) + 0)

Source: ONNX QuantizeLinear and DequantizeLinear. Adding 0 turns -0 into +0, as the integers in between do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.granularity import normalize_axis
from onnxfq.qtypes import QType, qtype_by_name

Float32Array = NDArray[np.float32]


def _half_even(v: Float32Array) -> Float32Array:
    return np.rint(v)


def _half_up(v: Float32Array) -> Float32Array:
    result: Float32Array = np.floor(v + np.float32(0.5))
    return result


def _divide(x: Float32Array, scale: Float32Array) -> Float32Array:
    return x / scale


def _reciprocal(x: Float32Array, scale: Float32Array) -> Float32Array:
    return x * (np.float32(1) / scale)


# Where halves go: half_even is that of ONNX, TensorRT and torch.
ROUNDINGS: dict[str, Callable[[Float32Array], Float32Array]] = {"half_even": _half_even, "half_up": _half_up}

# How x is measured in steps: divide is that of ONNX and TensorRT, reciprocal that of torch, which rounds
# 1 / scale to float32 first. torch makes NaN the lowest value of the grid; here NaN stays NaN in both.
ARITHMETICS: dict[str, Callable[[Float32Array, Float32Array], Float32Array]] = {
    "divide": _divide,
    "reciprocal": _reciprocal,
}


def expand_params(
    param: ArrayLike, shape: Sequence[int], axis: int | None = None, block_size: int | None = None
) -> NDArray[Any]:
    """Return `param` (a scale or zero point) repeated to `shape`, the shape of x.

    | param                      | element j of x uses                                      |
    |----------------------------|----------------------------------------------------------|
    | one element, any rank      | that                                                     |
    | rank 1, with `axis`        | param[j[axis]]                                           |
    | rank of x                  | param[i], i[d] = j[d] // ceil(shape[d] / param.shape[d]) |
    | rank of x, `block_size`    | the same, but blocks of `block_size` along `axis`        |

    For x of rank 1 the second and the third row agree. The last block may be short.
    Raises SpecError when the shapes do not fit; both are named.
    """
    values = np.asarray(param)
    shape = tuple(shape)
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
            values = np.repeat(values, block, axis=d).take(range(size), axis=d)
    return np.broadcast_to(values, shape)


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
    rounding: str = "half_even",
    arithmetic: str = "divide",
) -> NDArray[Any]:
    """Return the integers of `qtype` nearest to x, as an array of `qtype.dtype` and x's shape.

    x: float32. scale, zero_point: see `expand_params`. rounding, arithmetic: names in `ROUNDINGS` and
    `ARITHMETICS`. Values outside the grid saturate; NaN, which no integer can hold, becomes zero_point.
    Raises SpecError when a parameter breaks its rule.
    """
    qtype = _qtype(qtype)
    x = float32_array(x)
    scale, zero_point = check_params(scale, zero_point, qtype, rounding, arithmetic)
    steps = _rounded_steps(x, expand_params(scale, x.shape, axis, block_size), rounding, arithmetic)
    offset = expand_params(zero_point, x.shape, axis, block_size)
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
    rounding: str = "half_even",
    arithmetic: str = "divide",
) -> Float32Array:
    """Return x rounded to the grid of `qtype`, float32 of the same shape.

    Parameters and errors as in `quantize`. Values outside the grid saturate, infinities too; NaN stays NaN;
    -0 becomes +0. With arithmetic `divide` this is ONNX Runtime's QuantizeLinear and DequantizeLinear.
    """
    qtype = _qtype(qtype)
    x = float32_array(x)
    scale, zero_point = check_params(scale, zero_point, qtype, rounding, arithmetic)
    steps_of = expand_params(scale, x.shape, axis, block_size)
    offset = expand_params(zero_point, x.shape, axis, block_size)
    steps = _rounded_steps(x, steps_of, rounding, arithmetic)
    steps = np.clip(steps, qtype.qmin - offset, qtype.qmax - offset)
    with np.errstate(over="ignore", under="ignore"):
        result: Float32Array = (steps + np.float32(0)) * steps_of
    return result


def _rounded_steps(x: Float32Array, scale: Float32Array, rounding: str, arithmetic: str) -> Float32Array:
    with np.errstate(all="ignore"):  # an overflow to infinity saturates later, NaN is passed on
        return ROUNDINGS[rounding](ARITHMETICS[arithmetic](x, scale))


def _qtype(qtype: QType | str) -> QType:
    return qtype_by_name(qtype) if isinstance(qtype, str) else qtype


def float32_array(x: ArrayLike) -> Float32Array:
    """Return x as an array. Raises SpecError when it is not float32: converting would hide a rounding."""
    values = np.asarray(x)
    if values.dtype != np.float32:
        raise SpecError(f"x must be float32, got {values.dtype}; convert it with astype(numpy.float32)")
    return values


def check_params(
    scale: ArrayLike, zero_point: ArrayLike, qtype: QType, rounding: str, arithmetic: str
) -> tuple[Float32Array, Float32Array]:
    """Return scale and zero_point as float32 arrays of any shape.

    Raises SpecError unless every scale is finite and positive, every zero point an integer of `qtype`, and
    rounding and arithmetic are known.
    """
    for kind, name, known in (("rounding", rounding, ROUNDINGS), ("arithmetic", arithmetic, ARITHMETICS)):
        if name not in known:
            raise SpecError(f"unknown {kind} {name!r}{nearest(name, known)}")
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
    inside = (zero_points >= qtype.qmin) & (zero_points <= qtype.qmax)
    wrong = ~(inside & (zero_points == np.floor(zero_points)))
    if wrong.any():
        raise SpecError(
            f"zero_point must be an integer in [{qtype.qmin}, {qtype.qmax}] for {qtype}, "
            f"found {given[wrong].flat[0]}"
        )
    return scales, zero_points


def _check_scale(scale: ArrayLike) -> Float32Array:
    given = np.asarray(scale)
    with np.errstate(over="ignore", under="ignore"):
        scales: Float32Array = given.astype(np.float32)
    wrong = ~(np.isfinite(scales) & (scales > 0))
    if wrong.any():
        raise SpecError(f"scale must be finite and positive in float32, found {given[wrong].flat[0]}")
    return scales

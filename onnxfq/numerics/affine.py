"""Affine quantization in NumPy, the bit-exact reference of the kernels.

All arithmetic is float32; x of float16 or bfloat16 is converted first and the result rounded back once, as in
ONNX Runtime's QuantizeLinear and DequantizeLinear. The C++ twin is numeric_core.h.

    quantize       q = clamp(round(x / scale) + zero_point, qmin, qmax)
    dequantize     y = (q - zero_point) * scale
    fake_quantize  y = scale * (clamp(round(x / scale), qmin - zero_point, qmax - zero_point) + 0)
      fractions    y = scale * (clamp(round(x / scale + zero_point), qmin, qmax) - zero_point)
      float types  y = scale * round(x / scale), see rounding.py

Source: ONNX QuantizeLinear and DequantizeLinear. Adding 0 turns -0 into +0, as integers do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.numerics.float_types import FLOAT_DTYPES
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout, expand_params
from onnxfq.numerics.qtypes import QType, qtype_by_name
from onnxfq.numerics.rounding import ROUNDINGS, Float32Array, round_to_float_grid

# Conversion of x to steps, in NumPy and torch: `divide` follows ONNX, `reciprocal` torch, which rounds
# 1 / scale first. torch turns NaN into the lowest value of the grid; here NaN stays NaN in both.
ARITHMETICS: dict[str, Callable[[Any, Any], Any]] = {
    "divide": operator.truediv,
    "reciprocal": lambda x, scale: x * (1 / scale),
}


def quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    qtype: QType | str,
    granularity: Granularity = PER_TENSOR,
    rounding: str = "half_even",
    arithmetic: str = "divide",
) -> NDArray[Any]:
    """Return the numbers of `qtype` nearest to x, as an array of `qtype.dtype` and x's shape.

    Values outside the grid saturate; NaN, which integers cannot hold, becomes zero_point.

    Args:
        x: float32, float16 or bfloat16.
        scale: in the shape that `granularity` gives, or one that `Layout.match` accepts.
        zero_point: in such a shape; a scalar fits any scale.
        qtype: number format, or its name.
        granularity: which elements share a scale.
        rounding: name in `ROUNDINGS`.
        arithmetic: name in `ARITHMETICS`.

    Raises SpecError if a parameter breaks its rule.
    """
    qtype = as_qtype(qtype)
    x = float_array(x).astype(np.float32, copy=False)
    scale, zero_point = check_params(scale, zero_point, qtype, rounding, arithmetic)
    with np.errstate(all="ignore"):  # an overflow to infinity saturates later, NaN is passed on
        v = ARITHMETICS[arithmetic](x, expand_params(scale, x.shape, granularity))
    if qtype.is_float:
        codes: NDArray[Any] = round_to_float_grid(v, qtype, rounding).astype(qtype.dtype)
        return codes
    with np.errstate(all="ignore"):
        steps = np.asarray(ROUNDINGS[rounding](v))  # a new array, changed in place from here on
    offset = _fit_zero_point(zero_point, x.shape, granularity)
    # Limited before the zero point is added: a float32 sum of a large number would round.
    np.clip(steps, qtype.qmin - offset, qtype.qmax - offset, out=steps)
    steps[np.isnan(steps)] = 0
    steps += offset
    result: NDArray[Any] = steps.astype(np.int32).astype(qtype.dtype)
    return result


def dequantize(
    q: NDArray[Any],
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    granularity: Granularity = PER_TENSOR,
) -> Float32Array:
    """Return the float32 values of integers `q`: (q - zero_point) * scale.

    Parameters are as in `quantize`. Raises SpecError if a scale is not finite and positive.
    """
    integers = numbers(q, "q").astype(np.float32)
    scale = check_scale(scale)
    offset = _expand_zero_point(
        numbers(zero_point, "zero_point").astype(np.float32), integers.shape, granularity
    )
    with np.errstate(over="ignore", under="ignore"):
        result: Float32Array = (integers - offset) * expand_params(scale, integers.shape, granularity)
    return result


def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    qtype: QType | str,
    granularity: Granularity = PER_TENSOR,
    rounding: str = "half_even",
    arithmetic: str = "divide",
    saturate: bool = True,
) -> NDArray[Any]:
    """Return x rounded to the grid of `qtype`, in x's type and shape.

    Parameters and errors are as in `quantize`; a zero point may be a fraction. Values outside the grid
    saturate, and so do infinities; saturate=False turns them into the infinity or NaN of a float type. NaN
    stays NaN. -0 becomes +0, except for float types with -0. With arithmetic `divide` and integer zero points
    this equals ONNX Runtime's QuantizeLinear and DequantizeLinear.
    """
    qtype = as_qtype(qtype)
    given = float_array(x)
    values = given.astype(np.float32, copy=False)
    scale, zero_point = check_params(scale, zero_point, qtype, rounding, arithmetic, fractions=True)
    steps_of = expand_params(scale, values.shape, granularity)
    at = _fit_zero_point(zero_point, values.shape, granularity)
    rounded = round_to_grid(values, steps_of, at, qtype, rounding, arithmetic, saturate)
    with np.errstate(over="ignore", under="ignore"):
        return rounded.astype(given.dtype, copy=False)


def round_to_grid(
    x: Float32Array,
    scale: Float32Array,
    zero_point: Float32Array,
    qtype: QType,
    rounding: str = "half_even",
    arithmetic: str = "divide",
    saturate: bool = True,
) -> Float32Array:
    """Return `fake_quantize` of float32 `x` with parameters that are right and broadcast to it."""
    with np.errstate(all="ignore"):  # an overflow to infinity saturates, NaN is passed on
        v = np.asarray(ARITHMETICS[arithmetic](x, scale))  # a new array, changed in place from here on
        if qtype.is_float:
            rounded = round_to_float_grid(v, qtype, rounding, saturate)
        elif not zero_point.any():
            np.maximum(np.minimum(v, qtype.qmax, out=v), qtype.qmin, out=v)  # np.clip takes longer
            rounded = ROUNDINGS[rounding](v) + np.float32(0)
        else:
            # A fraction is added before rounding. Integers limit the steps instead: no second rounding.
            offset = zero_point if (zero_point != np.floor(zero_point)).any() else np.zeros((), np.float32)
            v += offset
            np.clip(v, qtype.qmin - (zero_point - offset), qtype.qmax - (zero_point - offset), out=v)
            rounded = ROUNDINGS[rounding](v) + np.float32(0)
            rounded -= offset
        result: Float32Array = rounded * scale
    return result


def _expand_zero_point(
    zero_point: Float32Array, shape: Sequence[int], granularity: Granularity
) -> Float32Array:
    # A scalar 0 fits any scale.
    return expand_params(zero_point, shape, granularity if zero_point.ndim else PER_TENSOR)


def _fit_zero_point(zero_point: Float32Array, shape: Sequence[int], granularity: Granularity) -> Float32Array:
    """Return zero points that broadcast to `shape`; a scalar if all are 0, which computes faster."""
    if zero_point.any():
        return _expand_zero_point(zero_point, shape, granularity)
    Layout.match(granularity if zero_point.ndim else PER_TENSOR, shape, zero_point.shape)
    return np.zeros((), np.float32)


def as_qtype(qtype: QType | str) -> QType:
    """Return `qtype`, looked up if it is a name. Raises SpecError for an unknown name."""
    return qtype if isinstance(qtype, QType) else qtype_by_name(str(qtype))


def numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return `values`, the argument called `name`, as an array. Raises SpecError if they are not numbers."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as fault:
        raise SpecError(f"{name} is not an array: {fault}; give numbers of one shape") from None
    if array.dtype.kind in "OUSMmc":
        raise SpecError(f"{name} must be numbers, got {values!r:.40}")
    return array


def float_array(x: ArrayLike) -> NDArray[Any]:
    """Return x as an array. Raises SpecError if it is not in `FLOAT_DTYPES`: a cast would hide a rounding."""
    values = numbers(x, "x")
    if values.dtype not in FLOAT_DTYPES:
        raise SpecError(
            f"x must be float32, float16 or bfloat16, got {values.dtype}; "
            "convert it with astype(numpy.float32)"
        )
    return values


def float32_array(x: ArrayLike) -> Float32Array:
    """Return x as an array. Raises SpecError if it is not float32: a cast would hide a rounding."""
    values = numbers(x, "x")
    if values.dtype != np.float32:
        raise SpecError(f"x must be float32, got {values.dtype}; convert it with astype(numpy.float32)")
    return values


def check_names(**names: str) -> None:
    """Raise SpecError unless rounding and arithmetic are known."""
    choices: dict[str, Collection[str]] = {"rounding": ROUNDINGS, "arithmetic": ARITHMETICS}
    for kind, name in names.items():
        known = choices[kind]
        if not isinstance(name, str) or name not in known:
            raise SpecError(f"unknown {kind} {name!r:.40}{nearest(str(name), known)}")


def check_params(
    scale: ArrayLike,
    zero_point: ArrayLike,
    qtype: QType,
    rounding: str,
    arithmetic: str,
    fractions: bool = False,
) -> tuple[Float32Array, Float32Array]:
    """Return scale and zero_point as float32 arrays of any shape.

    Raises SpecError unless every scale is finite and positive, every zero point is a number of `qtype` (an
    integer unless `fractions`, 0 for float types), and rounding and arithmetic are known.
    """
    check_names(rounding=rounding, arithmetic=arithmetic)
    scales = check_scale(scale)
    if arithmetic == "reciprocal":
        with np.errstate(over="ignore"):
            endless = np.isinf(np.float32(1) / scales)
        if endless.any():
            raise SpecError(
                f"scale {scales[endless].flat[0]} is too small to have a finite reciprocal; "
                "use arithmetic 'divide'"
            )
    given = numbers(zero_point, "zero_point")
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


def check_scale(scale: ArrayLike) -> Float32Array:
    """Return `scale` in float32. Raises SpecError unless every scale is finite and positive."""
    given = numbers(scale, "scale")
    with np.errstate(over="ignore", under="ignore"):
        scales: Float32Array = given.astype(np.float32)
    wrong = ~(np.isfinite(scales) & (scales > 0))
    if wrong.any():
        raise SpecError(f"scale must be finite and positive in float32, found {given[wrong].flat[0]}")
    return scales

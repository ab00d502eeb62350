"""Quantization of one array, of NumPy or torch, to an integer dtype, and its error.

    q = clamp(round(x / scale) + zero_point, dtype's limits)       fractions: round(x / scale + zero_point)
    x = (q - zero_point) * scale

Results belong to the library of x. Scales broadcast against x. Quotients are float32, sums of integers
float64, which is exact for int32.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError
from onnxfq.numerics.affine import check_scale, numbers
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.qtypes import qtype_of_integers


class TensorLike(Protocol):
    """A tensor of torch, which this package does not import here."""

    def detach(self) -> Any:
        """Return the numbers without their gradient."""


Tensor = TypeVar("Tensor", bound=TensorLike)


class QuantizedArray(NamedTuple):
    """Result of `quantize_array`, in the order in which `dequantize_array` takes it.

    Attributes:
        values: integers, of x's shape.
        scale: float32; its shape broadcasts against x.
        zero_point: in the shape of the scale; int64, or float32 if it is a fraction.
    """

    values: Any
    scale: Any
    zero_point: Any


class QuantizationNoise(NamedTuple):
    """Error of an array.

    Attributes:
        mse: mean of the squared differences.
        sqnr_db: signal to quantization noise in dB; infinite without noise.
    """

    mse: float
    sqnr_db: float


def quantize_array(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike = 0,
    *,
    dtype: object = "int8",
    symmetric: bool = False,
    axis: int | None = None,
) -> QuantizedArray:
    """Return the integers of x, with scale and zero point; without a given scale, of the range of x.

    Args:
        x: floats of NumPy or torch.
        scale: positive, of a shape that broadcasts against x; None takes it from the range, as
            `onnxfq.choose_qparams`, with amax / qmax if symmetric.
        zero_point: likewise, with a scale; it may be a fraction.
        dtype: integer dtype of the result, of NumPy or torch, or its name.
        symmetric: zero point 0.
        axis: the axis with one scale per index; None for one scale.

    Raises SpecError for a dtype that is not an integer, and for a parameter that breaks its rule.
    """
    values = _array(x)
    limits = integer_limits(dtype)
    if scale is None:
        rest = None if axis is None else tuple(d for d in range(values.ndim) if d != axis % values.ndim)
        low, high = values.min(rest, keepdims=axis is not None), values.max(rest, keepdims=axis is not None)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        qtype = qtype_of_integers(limits.min, limits.max)
        scale, _ = choose_qparams(low, high, qtype, symmetric, ParamRules(fractional_zero_point=True))
        # In float64: a zero point of uint32 exceeds the int32 of `choose_qparams`.
        zeros = np.rint(limits.min - np.minimum(low, 0) / scale.astype(np.float64))
        zero_point = np.zeros_like(scale) if symmetric else np.clip(zeros, limits.min, limits.max)
    scales, zeros = check_scale(_array(scale)), numbers(_array(zero_point), "zero_point")
    is_whole = np.array_equal(zeros, np.floor(zeros))
    with np.errstate(all="ignore"):  # infinities saturate, NaN becomes the zero point
        if is_whole:
            steps = np.rint(values / scales).astype(np.float64) + zeros
        else:
            steps = np.rint(values / scales + zeros.astype(np.float32)).astype(np.float64)
    top = float(limits.max) if limits.bits < 64 else np.nextafter(float(limits.max), 0)
    integers = np.where(np.isnan(steps), np.rint(zeros), np.clip(steps, limits.min, top)).astype(limits.dtype)
    zeros = np.minimum(zeros, top) if is_whole else zeros
    whole = "uint64" if limits.dtype == "uint64" else "int64"
    kept = zeros.astype(whole if is_whole else "float32")
    return QuantizedArray(_like(x, integers), _like(x, scales), _like(x, kept))


@overload
def dequantize_array(values: Tensor, scale: ArrayLike, zero_point: ArrayLike = 0) -> Tensor: ...


@overload
def dequantize_array(
    values: ArrayLike, scale: ArrayLike, zero_point: ArrayLike = 0
) -> NDArray[np.float32]: ...


def dequantize_array(values: Any, scale: ArrayLike, zero_point: ArrayLike = 0) -> Any:
    """Return the float32 numbers (values - zero_point) * scale, in the library of `values`.

    Args:
        values: integers.
        scale: of a shape that broadcasts against the values.
        zero_point: likewise; it may be a fraction.
    """
    scales, zeros = check_scale(_array(scale)), _array(zero_point)
    differences = _array(values).astype(np.float64) - zeros
    return _like(values, differences.astype(np.float32) * scales)


def quantization_noise(original: ArrayLike, dequantized: ArrayLike) -> QuantizationNoise:
    """Return the mean squared error and the SQNR of two arrays of one shape, computed in float64.

    Raises SpecError for different shapes.
    """
    reference, candidate = _array(original), _array(dequantized)
    if reference.shape != candidate.shape:
        raise SpecError(
            f"two arrays of one shape are compared, got {list(reference.shape)} and {list(candidate.shape)}"
        )
    sums = ErrorSums.from_arrays(reference, candidate)
    return QuantizationNoise(sums.noise / max(sums.elements, 1), sums.sqnr_db)


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch" or hasattr(x, "new_tensor")


def _array(x: Any) -> NDArray[Any]:
    if _is_torch(x):
        x = x.detach().cpu()
        x = (x.float() if x.is_floating_point() else x).numpy()
    values = numbers(x, "x")
    return values.astype(np.float32) if values.dtype.kind == "f" or values.dtype.itemsize == 0 else values


def _like(x: Any, result: NDArray[Any]) -> Any:
    """Return the result as a tensor if x is one; torch is loaded then."""
    return sys.modules["torch"].from_numpy(np.asarray(result)).to(x.device) if _is_torch(x) else result


def integer_limits(dtype: object) -> np.iinfo[Any]:
    """Return the limits of an integer dtype of NumPy or torch, or of its name; else raise SpecError."""
    try:
        return np.iinfo(np.dtype(dtype if isinstance(dtype, type) else str(dtype).removeprefix("torch.")))
    except (ValueError, TypeError):
        raise SpecError(f"dtype must be an integer type, such as int8, got {dtype}") from None

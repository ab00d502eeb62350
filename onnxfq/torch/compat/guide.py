"""The PyTorch tensor-quantization guide: its functions under their names, over `onnxfq.quantize_array`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.arrays import dequantize_array, integer_limits, quantize_array
from onnxfq.numerics.arrays import quantization_noise as both_errors
from onnxfq.torch.arguments import check_functions


def get_q_scale_and_zero_point(tensor: Tensor, dtype: torch.dtype = torch.int8) -> tuple[float, float]:
    """Return scale and zero point of the range as it is: a fraction, beyond the integers for one without 0.

    Raises SpecError for a dtype that is not an integer, and for a tensor whose range has no width.
    """
    limits = integer_limits(dtype)
    low, high = float(tensor.min()), float(tensor.max())
    if not low < high:
        raise SpecError(f"a range needs two ends, found {low} and {high}; use linear_q_symmetric")
    scale = (high - low) / (int(limits.max) - int(limits.min))
    return scale, int(limits.min) - low / scale


def get_q_scale_symmetric(tensor: Tensor, dtype: torch.dtype = torch.int8) -> float:
    """Return the largest magnitude / the largest integer."""
    return linear_q_symmetric(tensor, dtype)[1]


def linear_q_with_scale_and_zero_point(
    tensor: Tensor, scale: float | Tensor, zero_point: float | Tensor, dtype: torch.dtype = torch.int8
) -> Tensor:
    """Return the integers of `tensor`, as `dtype`."""
    values: Tensor = quantize_array(tensor, scale, zero_point, dtype=dtype).values
    return values


def linear_quantization(tensor: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, float, float]:
    """Return (integers, scale, zero point) of the range, as `get_q_scale_and_zero_point`."""
    scale, zero_point = get_q_scale_and_zero_point(tensor, dtype)
    return linear_q_with_scale_and_zero_point(tensor, scale, zero_point, dtype), scale, zero_point


def linear_q_symmetric(tensor: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, float]:
    """Return (integers, scale) with zero point 0."""
    made = quantize_array(tensor, dtype=dtype, symmetric=True)
    return made.values, float(made.scale)


def linear_q_symmetric_per_channel(
    r_tensor: Tensor, dim: int, dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """Return (integers, scale) with one scale per index of `dim`, which broadcasts against the tensor."""
    made = quantize_array(r_tensor, dtype=dtype, symmetric=True, axis=dim)
    return made.values, made.scale


def linear_dequantization(
    quantized_tensor: Tensor, scale: float | Tensor, zero_point: float | Tensor
) -> Tensor:
    """Return the values of the integers."""
    values: Tensor = dequantize_array(quantized_tensor, scale, zero_point)
    return values


def quantization_error(tensor: Tensor, dequantized_tensor: Tensor) -> float:
    """Return the mean squared error."""
    return both_errors(tensor, dequantized_tensor).mse


def plot_quantization_errors(
    original_tensor: Tensor, quantized_tensor: Tensor, dequantized_tensor: Tensor, path: str | None = None
) -> Any:
    """Return the figure of `onnxfq.plot_quantization_errors`, written to `path` if one is given."""
    # Pictures are made above this room; only who calls this needs them.
    draw = import_module("onnxfq").plot_quantization_errors
    return draw(original_tensor, quantized_tensor, dequantized_tensor, path)


check_functions(globals())

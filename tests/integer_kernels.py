"""A NumPy simulation of integer kernels: every Q/DQ pair on its grid, everything between in float64.

A fused kernel adds products of integers and rescales the sum once. In float64 products of 8-bit numbers and
their sums are exact, so that a kernel may differ only where the rescaled sum lies at a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxfq.calibration.statistics.moments import multiply_floats
from onnxfq.runtime.integer_products import find_byte_products

Array = NDArray[Any]

SATURATES = "integer kernels of this processor add pairs of products in 16 bits, which saturate"
"""Reason to leave out numbers of int8 kernels: `check` warns of it, and docs/onnxruntime.md explains it."""


def sums_saturate() -> bool:
    """Tell whether ONNX Runtime multiplies bytes wrongly on this processor, for lack of VNNI instructions."""
    return find_byte_products() is multiply_floats


def simulate(proto: onnx.ModelProto, feed: dict[str, Array]) -> dict[str, Array]:
    """Return all tensors of a Q/DQ model: integers behind QuantizeLinear, float64 elsewhere."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    values |= {name: array.astype(np.float64) for name, array in feed.items()}
    for node in proto.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        inputs = [values[name] if name else None for name in node.input]
        values[node.output[0]] = KERNELS[node.op_type](attributes, *inputs)
    return values


def _shape(params: Array, axis: int, rank: int) -> Array:
    wide = np.asarray(params, np.float64)
    return (
        wide.reshape([-1 if d == axis % rank else 1 for d in range(rank)])
        if wide.size > 1
        else wide.reshape(())
    )


def _quantize(attributes: dict[str, Any], x: Array, scale: Array, zero: Array) -> Array:
    axis = attributes.get("axis", 1)
    limits = np.iinfo(zero.dtype)
    steps = np.rint(x / _shape(scale, axis, x.ndim)) + _shape(zero, axis, x.ndim)
    return np.clip(steps, limits.min, limits.max).astype(zero.dtype)


def _dequantize(attributes: dict[str, Any], q: Array, scale: Array, zero: Array | None = None) -> Array:
    axis, rank = attributes.get("axis", 1), q.ndim
    offset = 0.0 if zero is None else _shape(zero, axis, rank)
    return (q.astype(np.float64) - offset) * _shape(scale, axis, rank)


def _windows(x: Array, attributes: dict[str, Any], kernel: tuple[int, ...], fill: float) -> Array:
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    around = list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *around], constant_values=fill)
    windows = sliding_window_view(padded, kernel, axis=tuple(range(2, x.ndim)))
    steps = attributes.get("strides", [1] * len(kernel))
    return windows[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]


def _conv(attributes: dict[str, Any], x: Array, w: Array, bias: Array | None = None) -> Array:
    groups, parts = attributes.get("group", 1), []
    windows = _windows(x, attributes, w.shape[2:], 0.0)
    for part, weight in zip(np.split(windows, groups, axis=1), np.split(w, groups), strict=True):
        spatial = "ab"[: w.ndim - 2]
        kernel = "uv"[: w.ndim - 2]
        parts.append(np.einsum(f"nc{spatial}{kernel},oc{kernel}->no{spatial}", part, weight))
    made = np.concatenate(parts, axis=1)
    return made if bias is None else made + bias.reshape(1, -1, *[1] * (w.ndim - 2))


def _gemm(attributes: dict[str, Any], a: Array, b: Array, c: Array | None = None) -> Array:
    made = a @ (b.T if attributes.get("transB", 0) else b)
    return made if c is None else made + c


def _pool(mean: bool) -> Callable[..., Array]:
    def run(attributes: dict[str, Any], x: Array) -> Array:
        kernel = tuple(attributes["kernel_shape"])
        windows = _windows(x, attributes, kernel, 0.0 if mean else -np.inf)
        axes = tuple(range(x.ndim, 2 * x.ndim - 2))
        return windows.mean(axes) if mean else windows.max(axes)

    return run


KERNELS: dict[str, Callable[..., Array]] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Conv": _conv,
    "Gemm": _gemm,
    "MaxPool": _pool(mean=False),
    "AveragePool": _pool(mean=True),
    "GlobalAveragePool": lambda attributes, x: x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),
    "Add": lambda attributes, a, b: a + b,
    "Mul": lambda attributes, a, b: a * b,
    "Concat": lambda attributes, *parts: np.concatenate(parts, attributes["axis"]),
    "Relu": lambda attributes, x: np.maximum(x, 0.0),
    "Clip": lambda attributes, x, low, high: np.clip(x, low, high),
    "LeakyRelu": lambda attributes, x: np.where(x < 0, np.float64(np.float32(attributes["alpha"])) * x, x),
    "Sigmoid": lambda attributes, x: 1.0 / (1.0 + np.exp(-x)),
    "Flatten": lambda attributes, x: x.reshape(x.shape[0], -1),
}

"""Q/DQ networks of one operator, which runtimes are asked about."""

from __future__ import annotations

import numpy as np
import onnx
from builders import Arrays, build_used, weights

STEP = np.float32(0.03)


def pair(data: str, result: str, scale: str = "s", zero: str = "z") -> str:
    """Return the text of a pair from tensor `data` to `result`."""
    integers = f"{result}_q"
    return (
        f"{integers} = QuantizeLinear ({data}, {scale}, {zero}) "
        f"{result} = DequantizeLinear ({integers}, {scale}, {zero}) "
    )


def integers(*shape: int) -> np.ndarray:
    """Return int8 weights."""
    return np.clip(np.rint(weights(*shape) * 30), -127, 127).astype(np.int8)


def zero_point(dtype: type, middle: bool = True) -> np.ndarray:
    """Return the zero point in the middle of an unsigned type, or 0."""
    return np.asarray((np.iinfo(dtype).max + 1) // 2 if middle and np.iinfo(dtype).min == 0 else 0, dtype)


def one_operator(
    text: str, constants: Arrays | None = None, *shapes: str, dtype: type = np.uint8, opset: int = 17
) -> onnx.ModelProto:
    """Return a network whose `text` reads "d", or "d" and "e": pairs of inputs "x" and "x2" of `dtype`.

    `{behind}` in the text stands for a pair from "t" to the output "y". Each pair has its own zero point.
    """
    names = ["x", "x2"][: len(shapes) or 1]
    inputs = ", ".join(f"float[{s}] {n}" for n, s in zip(names, shapes or ("1,8,8,8",), strict=True))
    pairs = pair("x", "d") + (pair("x2", "e", "s", "z2") if len(names) > 1 else "")
    behind = pair("t", "y", "so", "zo")
    stored: Arrays = {"s": STEP, "so": np.float32(0.05), "z": zero_point(dtype)}
    stored |= {"z2": zero_point(dtype), "zo": zero_point(dtype)} | (constants or {})
    body = text.replace("{behind}", behind)
    model = build_used(f"g ({inputs}) => (float y) {{ {pairs} {body} }}", stored, opset=opset, ir=10)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def weight(shape: tuple[int, ...], axis: int | None = 0, dtype: type = np.int8, zero: int = 0) -> Arrays:
    """Return integers "w_q", scale "ws" and zero point "wz" of a weight, for `WEIGHT` with this axis."""
    count = () if axis is None else (shape[axis],)
    numbers = integers(*shape).astype(np.int16) - (zero if dtype is np.int8 else -zero)
    return {
        "w_q": np.clip(numbers, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype),
        "ws": np.full(count, STEP),
        "wz": np.full(count, zero, dtype),
    }


def dequantized(axis: int | None = 0) -> str:
    """Return the text that makes weight "w"."""
    return f"w = DequantizeLinear {'' if axis is None else f'<axis = {axis}>'} (w_q, ws, wz) "

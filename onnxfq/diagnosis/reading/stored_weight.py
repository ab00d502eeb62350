"""Weights that a file stores in integers: their channels, and rounding them again."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.diagnosis.reading.quantizers import StoredConstant
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import WEIGHTED_INPUTS


@dataclass(frozen=True)
class RequantizedWeight:
    """A weight on a new grid.

    Attributes:
        values: real values that were rounded.
        numbers: the integers.
        scale: one number, or one for each channel.
        zero: likewise.
        axis: of the channels; None for one scale.
        rounded: the real values of the integers, float32.
    """

    values: NDArray[np.float32]
    numbers: NDArray[np.generic]
    scale: NDArray[np.float32]
    zero: NDArray[np.generic]
    axis: int | None
    rounded: NDArray[np.float32]


def is_per_axis(scale: NDArray[np.generic]) -> bool:
    """Tell whether there are several scales."""
    return scale.size > 1


def channel_axis(node: onnx.NodeProto, rank: int) -> int | None:
    """Return the axis of the output channels of the weight of a layer; None for another operator."""
    if node.op_type not in WEIGHTED_INPUTS:
        return None
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if attributes_of(node).get("transB") else 1
    return rank - 1


def requantize(values: NDArray[np.float32], constant: StoredConstant, axis: int | None) -> RequantizedWeight:
    """Return a weight rounded to the type of a stored one, with the range of each channel along `axis`.

    The grid is symmetric where the stored one has zero point 0, and for signed types.
    """
    least, most = constant.codes
    kind = np.dtype(constant.kind) if "4" not in constant.kind else getattr(ml_dtypes, constant.kind)
    others = tuple(at for at in range(values.ndim) if at != axis) if axis is not None else None
    shape = [-1 if at == axis else 1 for at in range(values.ndim)] if axis is not None else []
    low = np.minimum(values.min(others), 0).astype(np.float64)
    high = np.maximum(values.max(others), 0).astype(np.float64)
    if least < 0:
        scale, zero = np.maximum(-low, high) / most, np.zeros_like(low)
    else:
        scale = (high - low) / (most - least)
        zero = np.rint(least - low / np.where(scale > 0, scale, 1))
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    step, offset = (np.reshape(part, shape) if shape else part for part in (scale, zero))
    numbers = np.clip(np.rint(values / step) + offset, least, most)
    rounded = ((numbers - offset) * step).astype(np.float32)
    return RequantizedWeight(
        values, numbers.astype(kind), np.asarray(scale), np.asarray(zero).astype(kind), axis, rounded
    )

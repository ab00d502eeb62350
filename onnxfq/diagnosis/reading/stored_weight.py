"""Weights that a file stores in integers: their channels, and rounding them again."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.graph import ops
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.stored_grid import StoredGrid
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import expand_params
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec


@dataclass(frozen=True)
class RequantizedWeight:
    """A weight on a new grid.

    Attributes:
        values: real values that were rounded.
        numbers: the integers.
        zero: one number, or one for each channel.
        grid: of the numbers.
    """

    values: NDArray[np.float32]
    numbers: NDArray[np.generic]
    zero: NDArray[np.int32]
    grid: StoredGrid


def channel_axis(node: onnx.NodeProto, rank: int) -> int | None:
    """Return the axis of the output channels of the weight of a layer; None for another operator or rank."""
    return ops.channel_axis(SimpleNamespace(op=node.op_type, attrs=attributes_of(node)), 1, rank)


def requantize(
    values: NDArray[np.float32], codes: tuple[float, float], axis: int | None
) -> RequantizedWeight:
    """Return a weight rounded to the numbers `codes`, with the range of each channel along `axis`.

    The grid is symmetric for signed numbers.
    """
    least, most = map(int, codes)
    qtype, granularity = qtype_of_integers(-most if least < 0 else least, most), Granularity(axis)
    spec = QuantSpec(qtype=qtype, symmetric=least < 0, granularity=granularity)
    scale, zero = choose_qparams(*group_ranges(values, spec, MINMAX), qtype, spec.symmetric)
    numbers = quantize(values, scale, zero, qtype=qtype, granularity=granularity)
    steps = numbers.astype(np.int32) - expand_params(zero, values.shape, granularity)
    return RequantizedWeight(values, numbers, zero, StoredGrid(steps, scale, granularity))

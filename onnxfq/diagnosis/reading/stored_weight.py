"""Weights that a file stores in integers: their channels, and rounding them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.graph import ops
from onnxfq.graph.node_fields import attributes_of
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec


class WeightNumbers(NamedTuple):
    """A weight on a new grid: its integers, and one scale and zero point or one for each channel."""

    numbers: NDArray[np.generic]
    scale: NDArray[np.float32]
    zero: NDArray[np.int32]


def channel_axis(node: onnx.NodeProto, rank: int) -> int | None:
    """Return the axis of the output channels of the weight of a layer; None for another operator or rank."""
    return ops.channel_axis(SimpleNamespace(op=node.op_type, attrs=attributes_of(node)), 1, rank)


def round_weight(values: NDArray[np.float32], codes: tuple[float, float], axis: int | None) -> WeightNumbers:
    """Return a weight rounded to the numbers `codes`, with the range of each channel along `axis`.

    The grid is symmetric for signed numbers.
    """
    least, most = map(int, codes)
    qtype, granularity = qtype_of_integers(-most if least < 0 else least, most), Granularity(axis)
    spec = QuantSpec(qtype=qtype, symmetric=least < 0, granularity=granularity)
    scale, zero = choose_qparams(*group_ranges(values, spec, MINMAX), qtype, spec.symmetric)
    return WeightNumbers(quantize(values, scale, zero, qtype=qtype, granularity=granularity), scale, zero)

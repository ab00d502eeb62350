"""Operators that make large values of small ones, or of any: in a half type they may overflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.float_types import FloatInfo
from onnxfq.placement.half_range import smallest_magnitude

MAGNIFIERS = {"Log": 0, "Reciprocal": 0, "Div": 1, "Pow": 0}
"""Op type -> the input whose smallest values count most: near zero the digits matter, not the size."""

GROWERS = frozenset({"Cosh", "Exp", "Sinh"})
"""Operators that pass the largest float16 number for an operand of 12."""

WIDE_RANGE = 1e30
"""Largest number from which on a type needs no proof that values fit: bfloat16 has the range of float32."""

Constants = Callable[[str], NDArray[np.float32] | None]
"""Returns the values of a constant; None for a computed tensor."""


def explain_magnified(
    node: onnx.NodeProto,
    half: FloatInfo,
    constants: Constants,
    observed: Mapping[str, TensorStatistics] | None,
) -> str:
    """Return why an operator that magnifies its operand stays in float32; empty if it may be cast.

    Args:
        node: an operator that gives floats.
        half: the type.
        constants: values of constants by name.
        observed: statistics by tensor; None without data. The operator then stays unless a constant shows
            that its result fits.
    """
    slot = MAGNIFIERS.get(node.op_type)
    exponents = constants(node.input[1]) if node.op_type == "Pow" else None
    if slot is None or slot >= len(node.input):
        return _explain_growth(node, half) if observed is None else ""
    if exponents is not None and np.all(exponents >= 0) and (observed is not None or exponents.max() <= 1):
        return ""
    name = node.input[slot]
    values = constants(name)
    if observed is None and (values is None or node.op_type == "Pow"):
        return _unseen(half)
    known = TensorStatistics.from_array(values) if values is not None else (observed or {}).get(name)
    smallest = smallest_magnitude(known)
    if smallest >= half.smallest:
        return ""
    return (
        f"reads {name!r} with values down to {smallest:.2g}, which have few digits in the type below "
        f"{half.smallest:.2g}, and makes them large"
    )


def _explain_growth(node: onnx.NodeProto, half: FloatInfo) -> str:
    squares = node.op_type == "Mul" and node.input[0] == node.input[1]
    return _unseen(half) if squares or node.op_type in GROWERS else ""


def _unseen(half: FloatInfo) -> str:
    if half.largest > WIDE_RANGE:
        return ""
    return f"its result may pass {half.largest:.6g}, and no data shows its range"

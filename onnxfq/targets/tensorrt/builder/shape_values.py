"""Values of integer inputs that TensorRT needs when it builds: axes, amounts of padding, counts, shapes.

TensorRT calls them shape inputs and wants a range of values in the profile (`IOptimizationProfile`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto

from onnxfq.errors import DataError, nearest
from onnxfq.targets.reading.context import CheckContext

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_ZERO = frozenset({"CumSum", "Pad", "Trilu"})
"""Operators for which 0 is a value that any tensor allows; others get 1."""


def guess_values(reading: CheckContext, given: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return values for each integer input of up to one axis: those given, or a guess by its readers.

    Raises DataError for values of an input that has none, and for another number of values than it takes.
    """
    inputs = {v.name: count for v in reading.proto.graph.input if (count := _count(v)) is not None}
    for name, values in given.items():
        if name not in inputs:
            raise DataError(
                f"values are given for {name!r}, but integer inputs of fixed length alone take them"
                f"{nearest(name, inputs)}"
            )
        if len(values) != inputs[name]:
            raise DataError(f"input {name!r} takes {inputs[name]} values, not {len(values)}; correct them")
    guessed = {}
    for name, count in inputs.items():
        zero = any(site.op in _ZERO for site in reading.index.reading(name))
        guessed[name] = list(given.get(name, [0 if zero else 1] * count))
    return guessed


def _count(value: onnx.ValueInfoProto) -> int | None:
    """Return the number of integers that an input has; None for another kind of input."""
    tensor = value.type.tensor_type
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    if tensor.elem_type not in _INTEGERS or len(sizes) > 1 or not all(sizes):
        return None
    return sizes[0] if sizes else 1

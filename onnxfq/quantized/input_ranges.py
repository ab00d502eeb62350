"""Ranges that a quantized file gives its inputs, against the data: the cheapest sign of a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.node_fields import input_name
from onnxfq.quantized.number_grids import NumberGrid
from onnxfq.quantized.rounding import find_stored_type

LOOKED_AT = 8
"""Feeds whose values are compared."""

APART = 4.0
"""Width of a range over the data's, or the inverse, from which their preprocessing differs.

Samples of one kind differ by less, and the grid loses 2 of its 8 bits.
"""


def input_grids(proto: onnx.ModelProto) -> dict[str, NumberGrid]:
    """Return the grid of each input of a model that a QuantizeLinear with one constant scale reads."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    inputs = {value.name for value in proto.graph.input} - constants.keys()
    grids: dict[str, NumberGrid] = {}
    for node in proto.graph.node:
        scale = constants.get(input_name(node, 1))
        if node.op_type != "QuantizeLinear" or node.input[0] not in inputs or scale is None:
            continue
        zero = constants.get(input_name(node, 2))
        if not input_name(node, 2) or zero is not None:
            grids |= _grid(node, scale, zero)
    return grids


def _grid(
    node: onnx.NodeProto, scale: onnx.TensorProto, zero: onnx.TensorProto | None
) -> dict[str, NumberGrid]:
    values, offset = tensor_array(scale), None if zero is None else tensor_array(zero)
    if values.size != 1:
        return {}
    kind = find_stored_type(node, offset)
    number = 0.0 if offset is None else float(np.asarray(offset).astype(np.float32).reshape(()))
    return {node.input[0]: NumberGrid(float(values.reshape(())), number, kind, values.dtype)}


class InputRanges:
    """Smallest and largest value of each input in the first feeds, noted as they pass."""

    def __init__(self) -> None:
        """Begin without feeds."""
        self._ends: dict[str, tuple[float, float]] = {}

    def watch(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield the feeds, and note the values of the first ones: data may be readable only once."""
        for number, feed in enumerate(feeds):
            if number < LOOKED_AT:
                self._note(feed)
            yield feed

    def _note(self, feed: Feed) -> None:
        for name, values in feed.items():
            array = np.asarray(values)
            if array.size and array.dtype.kind == "f":
                low, high = self._ends.get(name, (0.0, 0.0))
                self._ends[name] = min(low, float(array.min())), max(high, float(array.max()))

    def explain(self, proto: onnx.ModelProto) -> list[str]:
        """Return a line for each input of a quantized model whose range and values disagree."""
        lines = []
        for name, grid in input_grids(proto).items():
            (low, high), (least, most) = grid.limits, self._ends.get(name, (0.0, 0.0))
            reach, size = max(-low, high), max(-least, most)
            if size and not size / APART < reach < size * APART:
                part = f"{100 * size / reach:.2g}% of its grid is used" if reach > size else "values saturate"
                lines.append(
                    f"input {name!r} was calibrated on {low:.4g}..{high:.4g} and the data is {least:.4g}.."
                    f"{most:.4g}: {part}; is it prepared as for calibration? `onnxfq diagnose` looks further"
                )
        return lines

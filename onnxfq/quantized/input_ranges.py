"""Ranges that a quantized file gives its inputs, against the data: the cheapest sign of a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.quantized.number_grids import NumberGrid
from onnxfq.quantized.rounding import find_stored_type

LOOKED_AT = 8
"""Feeds whose values are compared."""

APART = 4.0
"""Width of a range over the data's, or the inverse, from which their preprocessing differs.

Samples of one kind differ by less, and the grid loses 2 of its 8 bits.
"""


def constant_grids(index: GraphIndex) -> dict[str, NumberGrid]:
    """Return the grid of each tensor that a QuantizeLinear with one constant scale reads."""
    constants = index.constants
    grids: dict[str, NumberGrid] = {}
    for node in index.nodes:
        names = [name for name in node.input[1:3] if name]
        if node.op_type != "QuantizeLinear" or not constants.keys() >= {*names}:
            continue
        scale, *zeros = (tensor_array(constants[name]) for name in names)
        if scale.size == 1:
            kind = find_stored_type(node, zeros[0] if zeros else None)
            zero = float(zeros[0].astype(np.float32).reshape(())) if zeros else 0.0
            grids[node.input[0]] = NumberGrid(float(scale.reshape(())), zero, kind, scale.dtype)
    return grids


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
        for name, grid in constant_grids(GraphIndex(proto.graph)).items():
            (low, high), (least, most) = grid.limits, self._ends.get(name, (0.0, 0.0))
            reach, size = max(-low, high), max(-least, most)
            if size and not size / APART < reach < size * APART:
                part = f"{100 * size / reach:.2g}% of its grid is used" if reach > size else "values saturate"
                lines.append(
                    f"input {name!r} was calibrated on {low:.4g}..{high:.4g} and the data is {least:.4g}.."
                    f"{most:.4g}: {part}; is it prepared as for calibration? `onnxfq diagnose` looks further"
                )
        return lines

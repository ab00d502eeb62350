"""Saturation of a quantizer that is taken out: the ends of its range that values can pass, as a Clip.

The range of a quantizer may do the work of a Relu or Clip, which onnxruntime's quantizer removes. Bounds
arithmetic over the operators in front finds the ends that no value passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal, Protocol

import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.graph.bounds import UNKNOWN, Bounds, bounds_of

Ends = Literal["low", "high", "both"]

_DEPTH = 40
"""Operators in front of a tensor that are looked at."""


class Tensors(Protocol):
    """The graph that nodes are added to."""

    opset: int

    @property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """Tensor -> the node that computes it."""

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant; None for a computed or absent tensor."""

    def constant(self, name: str, values: Any) -> str:
        """Add a constant and return its name, `name` if it is free."""

    def interval(self, node: onnx.NodeProto) -> Bounds:
        """Return the least and the largest number that a DequantizeLinear gives, as far as it is known."""


@dataclass(frozen=True)
class Range:
    """The real numbers that a quantizer gives.

    Attributes:
        low: the smallest, one number or one for each index of an axis, in a shape that broadcasts.
        high: the largest, likewise.
        step: distance between two numbers at the ends; values that pass an end by less are not clipped.
    """

    low: NDArray[Any]
    high: NDArray[Any]
    step: NDArray[Any]


@dataclass(frozen=True)
class ValueLimit:
    """A Clip or Relu in place of a quantizer with one range for a tensor.

    Attributes:
        tensor: its input.
        low: the lower end; None if it has none.
        high: the upper end; None if it has none.
        step: distance between two numbers of the quantizer at the ends.
    """

    tensor: str
    low: float | None
    high: float | None
    step: float

    def find_unreached(self, rmin: float, rmax: float) -> Ends | None:
        """Return the ends that values of the range [rmin, rmax] do not pass by a step."""
        low = self.low is None or rmin >= self.low - self.step
        high = self.high is None or rmax <= self.high + self.step
        return "both" if low and high else "low" if low else "high" if high else None


def limit_of(node: onnx.NodeProto, limits: Range) -> ValueLimit | None:
    """Return the ends that `node`, the last one of `saturate`, has; None if they differ along an axis."""
    if node.op_type not in ("Clip", "Relu"):
        return None
    given = {a.name for a in node.attribute}
    given |= {key for key, name in zip(("min", "max"), node.input[1:], strict=False) if name}
    low = float(limits.low) if "min" in given or node.op_type == "Relu" else None
    return ValueLimit(node.input[0], low, float(limits.high) if "max" in given else None, float(limits.step))


def saturate(
    tensors: Tensors, tensor: str, saturated: str, limits: Range, *, name: str = "", read: Bounds = UNKNOWN
) -> list[onnx.NodeProto]:
    """Return nodes that compute `saturated`, `tensor` limited to a range; none if no value passes its ends.

    A Relu does what a lower end of 0 does alone.

    Args:
        tensors: the graph of the nodes; their limits are added to it.
        tensor: float.
        saturated: name of the result.
        limits: the range.
        name: of the last node.
        read: values that the readers of the result tell apart: (0, inf) in front of a Relu.
    """
    least, most = bound(tensors, tensor)
    low = None if bool((least >= limits.low - limits.step).all()) else limits.low
    high = None if bool((most <= limits.high + limits.step).all()) else limits.high
    low = None if low is None or bool((low <= read[0]).all()) else low
    high = None if high is None or bool((high >= read[1]).all()) else high
    if low is None and high is None:
        return []
    name = name or saturated
    if high is None and low is not None and not low.any():
        return [helper.make_node("Relu", [tensor], [saturated], name)]
    ends = {"min": low, "max": high}
    if all(end is None or end.size == 1 for end in ends.values()):
        single = {key: end.reshape(()) for key, end in ends.items() if end is not None}
        return [make_clip(tensor, saturated, single, tensors.opset, tensors.constant, name)]
    nodes = []  # Clip takes one number for each end
    for op, key in (("Max", "min"), ("Min", "max")):
        end = ends[key]
        if end is not None:
            is_last = key == "max" or high is None
            made = saturated if is_last else f"{saturated}/raised"
            limit = tensors.constant(f"{saturated}/{key}", end)
            nodes.append(helper.make_node(op, [tensor, limit], [made], name if is_last else made))
            tensor = made
    return nodes


def make_clip(
    tensor: str,
    limited: str,
    ends: Mapping[str, Any],
    opset: int,
    constant: Callable[[str, Any], str],
    name: str,
) -> onnx.NodeProto:
    """Return the Clip `name` that computes `limited` from `tensor`.

    Args:
        tensor: float.
        limited: name of the result.
        ends: "min", "max" or both, one number each.
        opset: of the model; below 11 the ends are attributes.
        constant: adds a constant and returns its name.
        name: of the node.
    """
    if opset < 11:
        given = {key: float(end) for key, end in ends.items()}
        return helper.make_node("Clip", [tensor], [limited], name, **given)
    inputs = [constant(f"{limited}/{key}", ends[key]) if key in ends else "" for key in ("min", "max")]
    return helper.make_node("Clip", [tensor, *inputs][: 3 if inputs[1] else 2], [limited], name)


def bound(tensors: Tensors, tensor: str) -> Bounds:
    """Return the least and the largest value that `tensor` can have, as far as its operators tell."""
    return _Finder(tensors).of(tensor, _DEPTH)


class _Finder:
    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self._known: dict[str, Bounds] = {}

    def of(self, tensor: str, depth: int) -> Bounds:
        if tensor not in self._known:
            self._known[tensor] = UNKNOWN  # of a tensor that is being looked at
            self._known[tensor] = self._look(tensor, depth)
        return self._known[tensor]

    def _look(self, tensor: str, depth: int) -> Bounds:
        node = self.tensors.makers.get(tensor)
        if node is None:
            return self._constant(tensor) if tensor else UNKNOWN
        if not depth:
            return UNKNOWN
        if node.op_type == "DequantizeLinear":
            return self.tensors.interval(node)
        return bounds_of(node, [self.of(name, depth - 1) for name in node.input])

    def _constant(self, tensor: str) -> Bounds:
        values = self.tensors.array(tensor)
        if values is None or not values.size or values.dtype.kind not in "fiu":
            return UNKNOWN
        least, most = float(values.min()), float(values.max())
        return UNKNOWN if isnan(least + most) else (least, most)

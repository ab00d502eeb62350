"""Saturation of a pair that is taken out: the ends of its range that values can pass, as a Clip.

The range of a pair may do the work of a Relu or Clip, which onnxruntime's quantizer removes. Bounds
arithmetic over the operators in front finds the ends that no value passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.graph.bounds import Bounds
from onnxfq.graph.saturation import ValueLimit


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
class Clipping:
    """How a Clip is written.

    Attributes:
        limited: name of the result.
        name: of the node.
        opset: of the model; below 11 the ends are attributes.
        constant: adds a constant and returns its name.
    """

    limited: str
    name: str
    opset: int
    constant: Callable[[str, Any], str]

    def make(self, tensor: str, ends: Mapping[str, Any]) -> onnx.NodeProto:
        """Return the Clip of `tensor`, to `ends`: "min", "max" or both, one number each."""
        if self.opset < 11:
            given = {key: float(end) for key, end in ends.items()}
            return helper.make_node("Clip", [tensor], [self.limited], self.name, **given)
        inputs = [
            self.constant(f"{self.limited}/{key}", ends[key]) if key in ends else "" for key in ("min", "max")
        ]
        return helper.make_node("Clip", [tensor, *inputs][: 3 if inputs[1] else 2], [self.limited], self.name)


def limit_of(node: onnx.NodeProto, limits: Range) -> ValueLimit | None:
    """Return the ends that `node`, the last one of `saturate`, has; None if they differ along an axis."""
    if node.op_type not in ("Clip", "Relu") or limits.low.size > 1:
        return None
    given = {a.name for a in node.attribute}
    given |= {key for key, name in zip(("min", "max"), node.input[1:], strict=False) if name}
    low = float(limits.low) if "min" in given or node.op_type == "Relu" else None
    return ValueLimit(node.input[0], low, float(limits.high) if "max" in given else None, float(limits.step))


def saturate(
    tensor: str, limits: Range, reached: tuple[Bounds, Bounds], clip: Clipping
) -> list[onnx.NodeProto]:
    """Return nodes that compute `clip.limited`, `tensor` within a range; none if no value passes its ends.

    A Relu does what a lower end of 0 does alone.

    Args:
        tensor: float.
        limits: the range.
        reached: the bounds of `tensor`, and the values that the readers of the result tell apart: (0, inf) in
            front of a Relu.
        clip: how it is written.
    """
    (least, most), read = reached
    low = None if bool((least >= limits.low - limits.step).all()) else limits.low
    high = None if bool((most <= limits.high + limits.step).all()) else limits.high
    low = None if low is None or bool((low <= read[0]).all()) else low
    high = None if high is None or bool((high >= read[1]).all()) else high
    if low is None and high is None:
        return []
    saturated, name = clip.limited, clip.name
    if high is None and low is not None and not low.any():
        return [helper.make_node("Relu", [tensor], [saturated], name)]
    ends = {"min": low, "max": high}
    if all(end is None or end.size == 1 for end in ends.values()):
        return [clip.make(tensor, {key: end.reshape(()) for key, end in ends.items() if end is not None})]
    nodes = []  # Clip takes one number for each end
    for op, key in (("Max", "min"), ("Min", "max")):
        end = ends[key]
        if end is not None:
            is_last = key == "max" or high is None
            made = saturated if is_last else f"{saturated}/raised"
            limit = clip.constant(f"{saturated}/{key}", end)
            nodes.append(helper.make_node(op, [tensor, limit], [made], name if is_last else made))
            tensor = made
    return nodes

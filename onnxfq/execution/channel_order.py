"""`explain_channel_order`: whether images with labels have their channels in reverse, such as BGR for RGB.

Without labels nothing tells it: of four trained networks two are as sure of what they see in either order.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.choices import DeviceChoice
from onnxfq.data.inputs import Inputs
from onnxfq.data.replay import KeptFeeds
from onnxfq.execution.sides import Side, run_sides
from onnxfq.graph.signature import output_names
from onnxfq.metrics.classes import predict_classes

_COLORS = 3
_PART = 16
"""Samples after which the test ends unless the reverse order has more labels right."""

_MOST = 256
"""Samples that are looked at."""

_CHANCE = 1e-4
"""Probability below which a difference is not by chance."""


def explain_channel_order(
    model: onnx.ModelProto, kept: KeptFeeds, labels: NDArray[np.generic], threads: int, device: DeviceChoice
) -> list[str]:
    """Return a line if more labels are right with the channels of the images in reverse; else nothing.

    Args:
        model: the float model, whose first output has the classes.
        kept: the data; its next pass still yields what is read here.
        labels: class of each row, whole numbers.
        threads: of a session, 0 for one per core.
        device: of the session.
    """
    place = find_channels(kept.source.inputs)
    if place is None or labels.dtype.kind != "i":
        return []
    name, axis = place
    side = Side(model, output_names(model)[:1], exact=False)
    feeds = kept.read_samples(_MOST)
    rows = given = reverse = better = worse = 0
    for start in range(0, len(feeds), _PART):
        part = feeds[start : start + _PART]
        pairs = [one for feed in part for one in (feed, {**feed, name: np.flip(feed[name], axis).copy()})]
        classes = [
            predict_classes(value, side.fetches[0])
            for ((value,),) in run_sides([side], pairs, threads, device)
        ]
        as_given, in_reverse = np.concatenate(classes[::2]), np.concatenate(classes[1::2])
        truth = labels[rows : rows + as_given.size]
        if as_given.dtype.kind != "i" or not truth.size == as_given.size == in_reverse.size:
            return []
        right, right_in_reverse = as_given == truth, in_reverse == truth
        rows += truth.size
        given, reverse = given + int(right.sum()), reverse + int(right_in_reverse.sum())
        better += int((right_in_reverse & ~right).sum())
        worse += int((right & ~right_in_reverse).sum())
        if better <= worse:
            return []
        if _chance(better, worse) < _CHANCE:
            return [
                f"{given / rows:.1%} of the first {rows} labels are right, and {reverse / rows:.1%} with the "
                f"channels of input {name!r} in reverse: data and model seem to differ as RGB and BGR; give "
                "images with --color, or reverse the arrays"
            ]
    return []


def find_channels(inputs: Inputs) -> tuple[str, int] | None:
    """Return the input of images and the axis of its three colors; None without one, or with several."""
    places = [
        (spec.name, axis)
        for spec in inputs
        if spec.shape is not None and len(spec.shape) == 4
        for axis in (1, 3)
        if spec.shape[axis] == _COLORS
    ]
    return places[0] if len(places) == 1 else None


def _chance(better: int, worse: int) -> float:
    """Return the probability of at least so many better rows if better and worse are equally likely."""
    count = better + worse
    return float(sum(math.comb(count, more) for more in range(better, count + 1)) / 2**count)

"""Damage that real networks have, planted in sound ones; only `tail` changes the float function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

import onnxfq
from onnxfq.graph.channels import ChannelGroup, analyze_channels
from onnxfq.passes.equalize import fold_factors

Feed = dict[str, Any]

OCTAVES = 6
"""Channels are scaled by 2^-OCTAVES to 2^OCTAVES."""

ONE_CHANNEL = 11
"""Exponent of the one channel that is scaled by 2,048."""

OUTLIER = 100.0
"""Factor of the one sample that is larger than all others."""

TAIL = 30.0
"""Factor of one weight of each output in the layer with a long tail."""


def scale_channels(model: Path, damaged: Path, one_channel: bool) -> None:
    """Write `model` with channels of other size, by factors that the next operators take back."""
    loaded = onnxfq.load(model)
    analysis = analyze_channels(loaded)
    groups = [group for group in analysis.groups if not group.explicit]
    exponents = np.zeros(analysis.count, np.int64)
    if one_channel:
        # A residual stream if there is one: sums carry its channels from layer to layer.
        longest: ChannelGroup = max(groups, key=lambda group: (len(group.carried), len(group.classes)))
        exponents[longest.classes[1]] = ONE_CHANNEL
    else:
        random = np.random.default_rng(0)
        for group in groups:
            exponents[group.classes] = random.integers(-OCTAVES, OCTAVES + 1, len(group.classes))
    onnxfq.save(fold_factors(loaded, analysis, exponents).proto, damaged)


def lengthen_tail(model: Path, damaged: Path) -> None:
    """Write `model` with one weight of each output 30 times as large, in the layer of most weights."""
    proto = onnxfq.load(model).proto
    layer = max(
        (one for one in proto.graph.initializer if len(one.dims) == 4), key=lambda one: np.prod(one.dims)
    )
    values = numpy_helper.to_array(layer).copy()
    rows = values.reshape(len(values), -1)
    rows[np.arange(len(rows)), np.abs(rows).argmin(1)] *= TAIL
    layer.CopyFrom(numpy_helper.from_array(values, layer.name))
    onnxfq.save(proto, damaged)


def enlarge_sample(feeds: Sequence[Feed]) -> list[Feed]:
    """Return the feeds with a first sample, a row of a first feed of rows, that is OUTLIER times as large."""
    first = {name: np.array(array) for name, array in feeds[0].items()}
    for array in first.values():
        array[:1] *= np.asarray(OUTLIER, array.dtype)
    return [first, *feeds[1:]]


DAMAGES: dict[str, Callable[[Path, Path], None] | None] = {
    "scaled": lambda model, damaged: scale_channels(model, damaged, one_channel=False),
    "channel": lambda model, damaged: scale_channels(model, damaged, one_channel=True),
    "tail": lengthen_tail,
    "sample": None,
}
"""Functions that write a damaged model, by name; None for damage of the data."""

"""Weights whose scales lie along the wrong axis, or are too wide for their channels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.causes.weight_reading import WeightReading
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout

FILLED = 0.98
"""Part of the largest number that each channel reaches along the axis by which it was rounded."""

USED = 0.6
"""Part of the grid that all channels of a weight leave unused above, where its scale is too wide."""

LEAST_GRID = 0.1
"""Part of the grid that a channel uses, below which its scale is one for others."""


def find_axis(reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the scales belong to another axis: along that one each channel fills the grid."""
    grid = reading.constant.grid
    axis = grid.granularity.axis
    if axis is None or grid.granularity.block_size is not None:
        return None
    shape = grid.steps.shape
    fills = {at: _use(grid.steps, at).min() for at, size in enumerate(shape) if size == grid.scale.size}
    right = max(fills, key=lambda at: fills[at], default=axis)
    if right == axis or fills[right] < FILLED or fills.get(axis, 1.0) >= FILLED:
        return None
    text = f"its {grid.scale.size} scales are applied along axis {axis}, "
    text += f"and its integers fill the grid along axis {right}"
    edit = partial(FileEditor.set_axes, scale=reading.constant.scale, axis=right)
    repair = f"the scales along axis {right}"
    return reading.suspect(text, repair, edit, kind="wrong_axis")


def find_spread(reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that channels of very different size share one scale."""
    axis, steps = reading.axis, reading.constant.grid.steps
    if axis is None or reading.own_axis is not None or steps.shape[axis] < 2:
        return None
    used = _use(steps, axis)
    typical = float(np.median(used))
    if typical >= LEAST_GRID:
        return None
    text = f"channel {np.argmax(used)} of {used.size} sets the scale of all: "
    text += f"others use {100 * typical:.2g}% of the grid"
    if reading.floats is None:
        return reading.suspect(text, "a scale for each channel; give the float model", kind="channel_spread")
    fix = reading.round_again(reading.floats, axis)
    return reading.suspect(text, f"a scale for each of {used.size} channels", fix, kind="channel_spread")


def find_unused(reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the scale is too wide for every channel.

    Every calibration gives the largest value the last number, or saturates. Some tools leave a bit unused, in
    all weights or in the first layer's (NNCF's overflow fix); where all others fill their grid, another one
    that does not is a fault at any harm.
    """
    constant = reading.constant
    if constant.kind != "int8" or reading.use > USED:
        return None
    fills = [other.use >= FILLED for other in others if other is not reading]
    is_alone = len(fills) > 1 and all(fills) and reading is not others[0]
    if not is_alone and reading.floats is None:
        return None
    others_text = ", and all others its end" if is_alone else ""
    text = f"its numbers reach {100 * reading.use:.2g}% of the grid{others_text}"
    if reading.floats is None:
        repair, fix = "give the float model, which has its range", None
    else:
        repair, fix = "the range of its values", reading.round_again(reading.floats, reading.own_axis)
    return reading.suspect(text, repair, fix, kind="weight_scale", is_certain=is_alone)


def _use(steps: NDArray[np.int32], axis: int) -> NDArray[np.float64]:
    """Return the part of the largest number that each channel along `axis` reaches."""
    reach = Layout(Granularity(axis), steps.shape).reduce(np.maximum, np.abs(steps), 0)
    return reach / max(float(reach.max()), 1.0)

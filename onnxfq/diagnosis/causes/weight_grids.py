"""Weights whose scales lie along the wrong axis, or are too wide for their channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.causes.weight_reading import (
    WeightReading,
    is_per_axis,
    round_again,
    suspect_weight,
)
from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.patient import Patient
from onnxfq.graph.stored_grid import StoredGrid

FILLED = 0.98
"""Part of the largest number that each channel reaches along the axis by which it was rounded."""

USED = 0.6
"""Part of the grid that all channels of a weight leave unused above, where its scale is too wide."""

LEAST_GRID = 0.1
"""Part of the grid that a channel uses, below which its scale is one for others."""


def find_axis(patient: Patient, reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the scales belong to another axis: along that one each channel fills the grid."""
    grid = reading.constant.grid
    axis = grid.granularity.axis
    if axis is None or grid.granularity.block_size is not None:
        return None
    fills = {at: _fill(grid.steps, at) for at, size in enumerate(grid.steps.shape) if size == grid.scale.size}
    right = max(fills, key=lambda at: fills[at], default=axis)
    if right == axis or fills[right] < FILLED or fills.get(axis, 1.0) >= FILLED:
        return None
    turned = StoredGrid(grid.steps, grid.scale, replace(grid.granularity, axis=right))
    text = (
        f"its {grid.scale.size} scales are applied along axis {axis}, and its integers fill the grid along "
        f"axis {right}"
    )
    change = Change(constants={reading.constant.constant: turned.values})
    edit = partial(FileEditor.set_axes, scale=reading.constant.scale, axis=right)
    repair = f"the scales along axis {right}"
    return suspect_weight(reading, "wrong_axis", text, repair, change, True, edit)


def find_spread(
    patient: Patient, reading: WeightReading, others: Sequence[WeightReading]
) -> Suspicion | None:
    """Return that channels of very different size share one scale."""
    axis, steps = reading.axis, reading.constant.grid.steps
    if axis is None or is_per_axis(reading) or steps.shape[axis] < 2:
        return None
    around = tuple(at for at in range(steps.ndim) if at != axis)
    reach = np.abs(steps).max(around)
    used = reach / max(int(reach.max()), 1)
    typical = float(np.median(used))
    if typical >= LEAST_GRID:
        return None
    channel = int(np.argmax(reach))
    text = (
        f"channel {channel} of {used.size} sets the scale of all: others use {100 * typical:.2g}% of the grid"
    )
    if reading.floats is None:
        repair = "a scale for each channel; give the float model"
        return suspect_weight(reading, "channel_spread", text, repair, Change(), True)
    change, edit = round_again(reading, reading.floats, axis)
    repair = f"a scale for each of {used.size} channels"
    return suspect_weight(reading, "channel_spread", text, repair, change, True, edit)


def find_unused(
    patient: Patient, reading: WeightReading, others: Sequence[WeightReading]
) -> Suspicion | None:
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
        repair = "give the float model, which has its range"
        return suspect_weight(reading, "weight_scale", text, repair, Change(), is_alone)
    change, edit = round_again(reading, reading.floats, reading.axis if is_per_axis(reading) else None)
    repair = "the range of its values"
    return suspect_weight(reading, "weight_scale", text, repair, change, is_alone, edit)


def _fill(steps: NDArray[np.int32], axis: int) -> float:
    """Return the least part of the largest number that a channel along `axis` reaches."""
    around = tuple(at for at in range(steps.ndim) if at != axis)
    reach = np.abs(steps).max(around)
    return float(reach.min()) / max(float(reach.max()), 1.0)

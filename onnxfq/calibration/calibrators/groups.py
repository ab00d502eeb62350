"""The calibrated range of each group of elements: channels, blocks, or all of a constant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.calibration.calibrators.grid_error import Density, grid_error
from onnxfq.calibration.statistics import GroupStatistics, TensorStatistics
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.spec import QuantSpec


def group_ranges(
    values: NDArray[np.float32], spec: QuantSpec, calibrator: Calibrator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (rmin, rmax) in the shape of a scale of `values`: one of each for a group that shares a scale.

    Each group is calibrated by itself, as a tensor that is the same in every feed.
    """
    layout = Layout(spec.granularity, values.shape)
    if calibrator == MINMAX:
        low, high = layout.reduce(np.minimum, values, np.inf), layout.reduce(np.maximum, values, -np.inf)
        return low.astype(np.float64), high.astype(np.float64)
    ranges = [calibrator(_as_feed(group), spec) for group in layout.split(values)]
    low, high = np.asarray(ranges, np.float64).reshape(-1, 2).T
    return low.reshape(layout.scale_shape), high.reshape(layout.scale_shape)


def observed_ranges(
    statistics: GroupStatistics, spec: QuantSpec, calibrator: Calibrator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (rmin, rmax) in the shape of a scale of an activation: each group is calibrated by itself.

    A group that had no finite value gets the range [0, 0].
    """
    if calibrator == MINMAX:
        ends = statistics.ranges.astype(np.float64)
    else:
        ends = np.asarray([calibrator(one, spec) for one in statistics.each()], np.float64).reshape(-1, 2)
    ends = np.where(np.isfinite(ends), ends, 0.0)
    return ends[:, 0].reshape(statistics.shape), ends[:, 1].reshape(statistics.shape)


def group_sqnr_db(
    statistics: GroupStatistics, rmin: NDArray[np.float64], rmax: NDArray[np.float64], spec: QuantSpec
) -> float:
    """Return the signal to quantization noise in dB, over all groups, that the grids of their ranges give."""
    power = noise = 0.0
    for one, low, high in zip(statistics.each(), rmin.ravel(), rmax.ravel(), strict=True):
        density = Density.of(one)
        power += density.power
        noise += float(grid_error(density, np.asarray([low]), np.asarray([high]), spec)[0])
    return ratio_db(power, noise)


def _as_feed(group: NDArray[np.float32]) -> TensorStatistics:
    statistics = TensorStatistics.from_array(group)
    return replace(statistics, feed_ranges=np.asarray([(statistics.rmin, statistics.rmax)], np.float32))

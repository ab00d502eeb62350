"""The calibrated range of each group of elements: channels, blocks, or all of a constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.calibration.calibrators.grid_error import Density, grid_error
from onnxfq.calibration.statistics import GroupStatistics, TensorStatistics
from onnxfq.numerics.granularity import normalize_axis
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.spec import QuantSpec


def group_ranges(
    values: NDArray[np.float32], spec: QuantSpec, calibrator: Calibrator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (rmin, rmax) in the shape of a scale of `values`: one of each for a group that shares a scale.

    Each group is calibrated by itself, as a tensor that is the same in every feed.
    """
    shape = spec.granularity.param_shape(values.shape)
    sizes = _group_sizes(values.shape, spec)
    if calibrator == MINMAX:
        ends = [_reduced(end, values, sizes).astype(np.float64) for end in (np.minimum, np.maximum)]
    else:
        ranges = [calibrator(_as_feed(group), spec) for group in _groups(values, sizes)]
        ends = list(np.asarray(ranges, np.float64).reshape(-1, 2).T)
    return ends[0].reshape(shape), ends[1].reshape(shape)


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


def _group_sizes(shape: Sequence[int], spec: QuantSpec) -> tuple[int, ...]:
    """Return how far a group reaches along each axis of `shape`."""
    if spec.block_shape is not None:
        return tuple(n if b == -1 else b for n, b in zip(shape, spec.block_shape, strict=True))
    if spec.axis is None:
        return tuple(shape)
    axis = normalize_axis(spec.axis, len(shape))
    if spec.block_size is None:
        return tuple(1 if d == axis else n for d, n in enumerate(shape))
    return tuple(spec.block_size if d == axis else 1 for d in range(len(shape)))


def _groups(values: NDArray[np.float32], sizes: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    counts = [-(-n // size) if size else 1 for n, size in zip(values.shape, sizes, strict=True)]
    for at in np.ndindex(*counts):
        yield values[tuple(slice(i * size, (i + 1) * size) for i, size in zip(at, sizes, strict=True))]


def _reduced(end: np.ufunc, values: NDArray[np.float32], sizes: Sequence[int]) -> NDArray[np.float32]:
    """Return the smallest or largest element of each group."""
    nothing = np.inf if end is np.minimum else -np.inf
    # Axes that lie whole in a group, one behind the other in memory, are one: short ones are slow.
    first = values.ndim
    while first and (sizes[first - 1] >= values.shape[first - 1] > 0 or sizes[first - 1] == 0):
        first -= 1
    if first < values.ndim:
        values = values.reshape(*values.shape[:first], prod(values.shape[first:]))
        sizes = (*sizes[:first], values.shape[-1])
    for axis, (n, size) in enumerate(zip(values.shape, sizes, strict=True)):
        if size >= n > 0 or size == 0:
            values = end.reduce(values, axis=axis, keepdims=True, initial=nothing)
        elif size > 1 and n > 0:
            values = end.reduceat(values, np.arange(0, n, size), axis=axis)
    return values


def _as_feed(group: NDArray[np.float32]) -> TensorStatistics:
    statistics = TensorStatistics.from_array(group)
    return replace(statistics, feed_ranges=np.asarray([(statistics.rmin, statistics.rmax)], np.float32))

"""Calibrated ranges and parameters of groups: channels, blocks, or all elements of a constant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX, MSE, Calibrator
from onnxfq.calibration.calibrators.constant_mse import least_error_ranges
from onnxfq.calibration.calibrators.grid_error import Density, grid_error
from onnxfq.calibration.calibrators.minmax import use_lowest_number
from onnxfq.calibration.statistics import GroupStatistics, TensorStatistics
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec


def group_ranges(
    values: NDArray[np.float32], spec: QuantSpec, calibrator: Calibrator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (rmin, rmax) in the shape of a scale of `values`, one range per group that shares a scale.

    Each group is calibrated separately, as a tensor that is the same in every feed; `mse` searches symmetric
    ranges on the values in place of their histogram.
    """
    layout = Layout(spec.granularity, values.shape)
    if calibrator == MINMAX:
        low, high = layout.reduce(np.minimum, values, np.inf), layout.reduce(np.maximum, values, -np.inf)
        return use_lowest_number(low.astype(np.float64), high.astype(np.float64), spec)
    if calibrator == MSE and spec.symmetric and values.size:
        return least_error_ranges(values, spec)
    ranges = [calibrator(_as_feed(group), spec) for group in layout.split(values)]
    low, high = np.asarray(ranges, np.float64).reshape(-1, 2).T
    return low.reshape(layout.scale_shape), high.reshape(layout.scale_shape)


def calibrate_groups(
    statistics: GroupStatistics, spec: QuantSpec, calibrator: Calibrator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (rmin, rmax) in the shape of a scale of an activation, with each group calibrated separately.

    A group without finite values gets the range [0, 0].
    """
    if calibrator == MINMAX:
        low, high = statistics.ranges.astype(np.float64).T
        ends = np.stack(use_lowest_number(low, high, spec), axis=1)
    else:
        ends = np.asarray([calibrator(one, spec) for one in statistics.split()], np.float64).reshape(-1, 2)
    ends = np.where(np.isfinite(ends), ends, 0.0)
    return ends[:, 0].reshape(statistics.shape), ends[:, 1].reshape(statistics.shape)


def group_sqnr_db(
    statistics: GroupStatistics, rmin: NDArray[np.float64], rmax: NDArray[np.float64], spec: QuantSpec
) -> float:
    """Return the SQNR in dB over all groups on the grids of their ranges."""
    power = noise = 0.0
    for one, low, high in zip(statistics.split(), rmin.ravel(), rmax.ravel(), strict=True):
        density = Density.from_statistics(one)
        power += density.power
        noise += float(grid_error(density, np.asarray([low]), np.asarray([high]), spec)[0])
    return ratio_db(power, noise)


def _as_feed(group: NDArray[np.float32]) -> TensorStatistics:
    statistics = TensorStatistics.from_array(group)
    return replace(statistics, feed_ranges=np.asarray([(statistics.rmin, statistics.rmax)], np.float32))


MOST_OCTAVES = 12
"""Largest power of two by which a channel is multiplied; smaller channels have a coarser grid."""


def choose_equalized_qparams(
    ranges: NDArray[np.float32], spec: QuantSpec
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return scale float32 [C] and zero point [C] of channels with `ranges` [C, 2].

    Channel c is multiplied by the largest power of two, up to 2^MOST_OCTAVES, that keeps its magnitudes
    within the largest channel. The products lie in one range; its scale, divided by the channel's power of
    two, is the scale of the channel. Therefore no observed value saturates, and a symmetric step of int8 is
    less than 2 * 128 / 127 of the step of a per-channel grid. A channel that was always 0 keeps the common
    scale.

    Cross-layer equalization has the same purpose (M. Nagel et al., "Data-Free Quantization Through Weight
    Equalization and Bias Correction", 2019). Here it is for activations only: the weights of a depthwise
    convolution have a scale for each channel and lose nothing.
    """
    ends = np.where(np.isfinite(ranges), ranges, 0.0).astype(np.float64)
    low, high = np.minimum(ends[:, 0], 0.0), np.maximum(ends[:, 1], 0.0)
    octaves = _octaves(np.maximum(-low, high))
    rmin, rmax = (np.ldexp(low, octaves).min(initial=0.0), np.ldexp(high, octaves).max(initial=0.0))
    rules = spec.param_rules()
    common, zero_point = choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules)
    scale = np.ldexp(common.astype(np.float32), -octaves)
    if scale.min(initial=np.inf) < np.finfo(np.float32).tiny:  # too small to divide without rounding
        rmin, rmax = low.min(initial=0.0), high.max(initial=0.0)
        common, zero_point = choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules)
        scale = np.full(len(ranges), common, np.float32)
    return scale.astype(np.float32), np.full(len(ranges), zero_point)


def _octaves(amax: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return floor(log2(largest / amax)) of each channel, exact, from 0 to MOST_OCTAVES; 0 if amax is 0."""
    mantissa, exponent = np.frexp(amax)
    top, reach = np.frexp(amax.max(initial=0.0))
    octaves = np.clip(reach - exponent - (mantissa > top), 0, MOST_OCTAVES)
    return np.asarray(np.where(amax > 0.0, octaves, 0), np.int64)

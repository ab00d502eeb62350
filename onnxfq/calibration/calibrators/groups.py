"""Calibrated ranges of groups: channels, blocks, and several tensors that get one range."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
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

    Each group is calibrated separately, as a tensor that is the same in every feed; `mse` searches on the
    values in place of their histogram.
    """
    layout = Layout(spec.granularity, values.shape)
    if calibrator == MINMAX:
        low, high = layout.reduce(np.minimum, values, np.inf), layout.reduce(np.maximum, values, -np.inf)
        return use_lowest_number(low.astype(np.float64), high.astype(np.float64), spec)
    if calibrator == MSE and values.size:
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


def choose_channel_ranges(
    ranges: NDArray[np.float32], samples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (rmin, rmax) [C] of channels with the observed `ranges` [C, 2], 0 included.

    One channel has few values, and new data soon leaves their range. Therefore it grows by what twice the
    samples would add, within the range of the whole tensor, which a channel of zeros gets too. Source: the
    largest of n values with an exponential tail is on average proportional to the n-th harmonic number (A.
    Renyi, "On the theory of order statistics", 1953).

    Args:
        ranges: by channel; without finite values (+inf, -inf).
        samples: number of samples that were observed.
    """
    ends = np.where(np.isfinite(ranges), ranges, 0.0).astype(np.float64)
    low, high = np.minimum(ends[:, 0], 0.0), np.maximum(ends[:, 1], 0.0)
    least, most = low.min(initial=0.0), high.max(initial=0.0)
    growth = round(_harmonic(2 * samples) / _harmonic(samples), 6)  # the same on all machines
    dead = (low == 0.0) & (high == 0.0)
    low = np.where(dead, least, np.maximum(low * growth, least))
    return low, np.where(dead, most, np.minimum(high * growth, most))


def _harmonic(count: int) -> float:
    """Return 1 + 1/2 + ... + 1/count, with a relative error below 1e-6 from 10 on; at least 1."""
    if count < 10:
        return sum(1.0 / n for n in range(1, max(count, 1) + 1))
    return float(np.log(count) + np.euler_gamma + 0.5 / count - 1.0 / (12 * count**2))


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


Range = tuple[float, float]

MOST_NOISE = 4.0
"""Largest sum of the relative noise of all tensors of a group, over that sum with separate ranges.

It is the noise of one bit less. Measured on a trained YOLOv8-n with 16 bridges and photographs, SQNR of the
output without common ranges, with this limit, and with no limit: best_error 22.8, 23.2, 23.2 dB; minmax
24.4, 24.2, 24.2 dB; entropy 30.5, 31.1, 31.1 dB.
"""


class Member:
    """Tensor of a group: its statistics, range and format, and whether its range is fixed."""

    def __init__(
        self, statistics: TensorStatistics, limits: Range, spec: QuantSpec, fixed: bool = False
    ) -> None:
        self.statistics, self.limits, self.spec, self.fixed = statistics, limits, spec, fixed

    @cached_property
    def _density(self) -> Density:
        return Density.from_statistics(self.statistics)

    def noises(self, ranges: Sequence[Range]) -> np.ndarray:
        """Return the expected noise on the grid of each range, relative to the power of the tensor."""
        power = self._density.power
        if not power:
            return np.zeros(len(ranges))
        low, high = np.asarray(ranges, np.float64).T
        return grid_error(self._density, low, high, self.spec) / power


def choose_common_ranges(
    wanted: Mapping[str, Sequence[str]],
    members: Mapping[str, Member],
    counted: Collection[str],
    required: Collection[str] = (),
) -> tuple[dict[str, Range], tuple[str, ...]]:
    """Join the tensors of each wanted group, one group after the other, if that adds little noise.

    Groups with a common tensor are joined too. The candidates are the separate ranges of the counted tensors.
    The one with the least sum of relative noise over these tensors is taken. It is refused if that sum is
    more than MOST_NOISE times the sum with separate ranges. A Concat of values of one size gets one range,
    and probabilities next to logits keep theirs.

    Args:
        wanted: name of a group -> its tensors.
        members: all tensors of the groups.
        counted: tensors with readers beyond the groups. The noise of others is that of their group.
        required: names of groups that are never refused; a fixed range of a tensor is theirs.

    Returns the ranges of all tensors, and the names of refused groups.
    """
    joined: dict[str, tuple[str, ...]] = {name: (name,) for name in members}
    chosen = {name: member.limits for name, member in members.items()}
    refused = []
    for name, tensors in wanted.items():
        union = tuple(dict.fromkeys(one for tensor in tensors for one in joined[tensor]))
        best = _choose(union, members, counted, MOST_NOISE if name not in required else np.inf)
        if best is None:
            refused.append(name)
            continue
        for tensor in union:
            joined[tensor], chosen[tensor] = union, best
    return chosen, tuple(refused)


def _choose(
    tensors: Sequence[str], members: Mapping[str, Member], counted: Collection[str], most_noise: float
) -> Range | None:
    """Return the best common range; None if it multiplies the noise by more than `most_noise`."""
    weighed = [members[name] for name in tensors if name in counted] or [members[name] for name in tensors]
    fixed = [members[name] for name in tensors if members[name].fixed]
    ranges = list(dict.fromkeys(member.limits for member in fixed or weighed))
    noise = np.sum([member.noises(ranges) for member in weighed], axis=0)
    own = sum(float(member.noises([member.limits])[0]) for member in weighed)
    best = int(np.argmin(noise))
    return ranges[best] if np.isinf(most_noise) or noise[best] <= most_noise * own else None

"""Ends of the channels of layers' inputs, and means as exact sums of integers: two kinds of statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_kinds import Ends, ObservedInput, input_kind
from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.calibration.statistics.moments import choose_steps
from onnxfq.errors import StatisticsError

LARGEST = 1 << 23
"""Largest magnitude of an input in steps: sums of 2^30 such integers are exact in float64."""


def channel_ends(x: NDArray[np.float32], view: InputView) -> Ends:
    """Return the magnitudes of the largest and of the least value of each channel, [2, channels].

    A channel without positive or without negative values has 0 at that end.
    """
    channel = view.channel_axis % x.ndim
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    return np.array([x.max(axis=others, initial=0.0), -x.min(axis=others, initial=0.0)], np.float64)


@dataclass(frozen=True)
class ChannelEnds:
    """Ends of the channels of an input.

    Attributes:
        ends: see `Ends`.
    """

    ends: Ends

    def __post_init__(self) -> None:
        """Raise ValueError unless these are two finite magnitudes of each channel."""
        ends = self.ends
        if ends.ndim != 2 or len(ends) != 2 or not (np.isfinite(ends) & (ends >= 0)).all():
            raise ValueError(f"ranges of shape {ends.shape} are not two finite magnitudes for each channel")

    def merge(self, other: ChannelEnds) -> ChannelEnds:
        """Return the ends of both data sets. Raises ValueError for other channels."""
        if self.ends.shape != other.ends.shape:
            raise ValueError(f"the parts have {self.ends.shape[1]} and {other.ends.shape[1]} channels")
        return ChannelEnds(np.maximum(self.ends, other.ends))


def finite_ends(observed: ObservedInput, x: NDArray[np.float32], feed: int) -> ChannelEnds:
    """Return the ends of the array of feed number `feed`. Raises StatisticsError for NaN and infinities."""
    ends = channel_ends(x, observed.view)
    if not np.isfinite(ends).all():
        raise StatisticsError(
            f"feed {feed} gives tensor {observed.tensor!r} NaN or infinities, which have no moments; remove "
            "them from the data, or use rounding: nearest and bias_correction: none"
        )
    return ChannelEnds(ends)


@dataclass(frozen=True)
class InputMean:
    """Sum of the rows of an input, in steps.

    Attributes:
        sums: whole numbers, float64 [groups, inputs].
        steps: of each input, in the same shape.
        rows: number of rows.
    """

    sums: NDArray[np.float64]
    steps: NDArray[np.float64]
    rows: NDArray[np.int64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of all rows, [groups, inputs]."""
        return np.asarray(self.sums * self.steps / max(int(self.rows), 1))

    def merge(self, other: InputMean) -> InputMean:
        """Return the sum over both data sets. Raises ValueError for other steps."""
        if not np.array_equal(self.steps, other.steps):
            raise ValueError("the means of both parts have different steps")
        return InputMean(self.sums + other.sums, self.steps, self.rows + other.rows)


def _mean_of(observed: ObservedInput, x: NDArray[np.float32], feed: int) -> InputMean:
    """Return the mean of one feed, on the grid of the ends."""
    assert observed.ends is not None
    view, steps = observed.view, choose_steps(observed.ends.max(axis=0), LARGEST)
    # Exact: the steps are powers of two.
    whole = np.rint(x * view.along(1 / steps, x.ndim).astype(np.float32))
    sums, rows = view.sums(np.asarray(np.clip(whole, -LARGEST, LARGEST), np.float64))
    return InputMean(sums, view.spread(steps), np.asarray(rows))


ENDS = input_kind("ends", "ranges of the input ", ChannelEnds, finite_ends)
MEANS = input_kind("means", "the mean of input ", InputMean, _mean_of)

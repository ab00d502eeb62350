"""`TensorValues`: what the data shows of one tensor, and how well a grid holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.calibration.calibrators.entropy import linear_histogram
from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.calibration.statistics.bins import NEGATIVE
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import QType, qtype_by_name, qtype_of_integers
from onnxfq.numerics.spec import QuantSpec

SAMPLED = 4096
"""Values that are kept of a tensor from each feed, evenly spaced."""

SIGNED = 0.01
"""Share of values below 0, and of their energy, from which a tensor is signed."""


class GridFit(NamedTuple):
    """A scale and a zero point."""

    scale: float
    zero: float


@dataclass(frozen=True)
class TensorValues:
    """Values of one tensor over all feeds.

    Attributes:
        seen: statistics of evenly spaced values, with the ends of all values, of all feeds and of each.
        channels: the largest magnitude of each channel; empty without a channel axis.
    """

    seen: TensorStatistics
    channels: NDArray[np.float64]

    @staticmethod
    def of(array: NDArray[Any], channels_last: bool) -> TensorValues:
        """Return the finite values of one feed."""
        flat = array.ravel()
        if flat.size and not (np.isfinite(flat.min()) and np.isfinite(flat.max())):
            flat = flat[np.isfinite(flat)]
        seen = TensorStatistics.from_array(flat[:: max(1, flat.size // SAMPLED)])
        if flat.size:
            low, high = float(flat.min()), float(flat.max())
            seen = replace(seen, rmin=low, rmax=high, feed_ranges=np.asarray([[low, high]], np.float32))
        channels = np.zeros(0)
        if array.ndim > 1 and array.size:
            others = tuple(at for at in range(array.ndim) if at != (array.ndim - 1 if channels_last else 1))
            channels = np.maximum(array.max(others), -array.min(others)).astype(np.float64)
        return TensorValues(seen, channels)

    @staticmethod
    def over(parts: Sequence[TensorValues]) -> TensorValues:
        """Return the values of several feeds, or of several tensors as a grid that they share sees them."""
        same = len({part.channels.shape for part in parts}) == 1
        channels = np.max([part.channels for part in parts], 0) if same else np.zeros(0)
        return TensorValues(reduce(TensorStatistics.merge, (part.seen for part in parts)), channels)

    @cached_property
    def density(self) -> Density:
        """The histogram of the values."""
        return Density.from_statistics(self.seen)

    @property
    def power(self) -> float:
        """Mean square of the values."""
        return self.density.power / max(self.seen.finite, 1)

    def noise(self, scale: float, zero: float, quantizer: ActivationQuantizer) -> float:
        """Return the mean square error of a grid of the quantizer's type."""
        return estimate_noise(self.density, scale, zero, number_type(quantizer)) / max(self.seen.finite, 1)

    def share_between(self, low: float, high: float) -> float:
        """Return the share of values from `low` to `high`."""
        edges = np.asarray([min(self.seen.rmin, low), low, high, max(self.seen.rmax, high)])
        return float(linear_histogram(self.density, edges)[1]) / max(self.seen.finite, 1)

    def saturated(self, quantizer: ActivationQuantizer) -> tuple[float, float]:
        """Return the shares of values that saturate at the lower and at the upper end."""
        (low, high), half = quantizer.grid.limits, quantizer.grid.scale / 2
        return self.share_between(-np.inf, low - half), self.share_between(high + half, np.inf)

    @cached_property
    def below_zero(self) -> tuple[float, float]:
        """Shares of the values below 0, and of their energy."""
        negative = self.density.select(self.seen.bins >= NEGATIVE)
        power = self.density.power
        return (negative.counts.sum() / self.seen.finite, negative.power / power) if power else (0.0, 0.0)

    @property
    def is_signed(self) -> bool:
        """Whether values below 0 are more than a few."""
        return min(self.below_zero) >= SIGNED

    def fit(self, quantizer: ActivationQuantizer, calibrator: Calibrator) -> GridFit:
        """Return the grid that a calibrator gives the values, of the quantizer's type and symmetry.

        A grid without negative numbers is given some if the values need them.
        """
        grid, seen, numbers = quantizer.grid, self.seen, number_type(quantizer)
        if not self.power:
            return GridFit(grid.scale, grid.zero)
        if quantizer.is_symmetric and not numbers.is_float:
            most = grid.codes[1] - grid.zero
            numbers = qtype_of_integers(int(-most), int(most))
        elif quantizer.starts_at_zero and not self.is_signed:
            kept = seen.bins < NEGATIVE
            seen = replace(seen, rmin=0.0, bins=seen.bins[kept], counts=seen.counts[kept])
        spec = QuantSpec(qtype=numbers, symmetric=quantizer.is_symmetric)
        scale, zero = choose_qparams(*calibrator(seen, spec), spec.qtype, spec.symmetric)
        return GridFit(float(scale), grid.zero if quantizer.is_symmetric else float(zero))


def number_type(quantizer: ActivationQuantizer) -> QType:
    """Return the type of the numbers of a quantizer, with its limits."""
    grid = quantizer.grid
    if "int" not in grid.kind.name:
        return qtype_by_name(grid.kind.name.replace("_", ""))
    return qtype_of_integers(*map(int, grid.codes))

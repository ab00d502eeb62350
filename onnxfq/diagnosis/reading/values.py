"""`TensorValues`: what the data shows of one tensor, and how well a grid holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer

SAMPLED = 4096
"""Values that are kept of a tensor from each feed, evenly spaced."""

SIGNED = 0.01
"""Share of values below 0, and of their energy, from which a tensor is signed."""

_SHRINKS = np.linspace(1.0, 0.2, 17)
"""Parts of the full range that are tried for the least error; a finer search gains less than 0.1 dB."""


@dataclass(frozen=True)
class GridFit:
    """A scale and zero point, and their error on the sampled values."""

    scale: float
    zero: float
    noise: float


@dataclass(frozen=True)
class TensorValues:
    """Values of one tensor over all feeds.

    Attributes:
        low: the smallest.
        high: the largest.
        sample: evenly spaced values of all feeds, float64.
        lows: the smallest of each feed.
        highs: the largest of each feed.
        channels: the largest magnitude of each channel; empty without a channel axis.
    """

    low: float
    high: float
    sample: NDArray[np.float64]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    channels: NDArray[np.float64]

    @staticmethod
    def of(array: NDArray[Any], channels_last: bool) -> TensorValues:
        """Return the finite values of one feed."""
        flat = array.ravel()
        if flat.size and not (np.isfinite(flat.min()) and np.isfinite(flat.max())):
            flat = flat[np.isfinite(flat)]
        ends = flat[[flat.argmin(), flat.argmax()]].astype(np.float64) if flat.size else np.zeros(2)
        channels = np.zeros(0)
        if array.ndim > 1 and array.size:
            axis = array.ndim - 1 if channels_last else 1
            others = tuple(at for at in range(array.ndim) if at != axis)
            channels = np.maximum(array.max(others), -array.min(others)).astype(np.float64)
        return TensorValues(
            low=float(ends[0]),
            high=float(ends[1]),
            sample=flat[:: max(1, flat.size // SAMPLED)].astype(np.float64),
            lows=ends[:1] if flat.size else ends[:0],
            highs=ends[1:] if flat.size else ends[:0],
            channels=channels,
        )

    @staticmethod
    def over(parts: Sequence[TensorValues]) -> TensorValues:
        """Return the values of several feeds, or of several tensors as a grid that they share sees them."""
        lows, highs, sample = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("lows", "highs", "sample")
        )
        same = len({part.channels.shape for part in parts}) == 1
        return TensorValues(
            low=float(lows.min()) if lows.size else 0.0,
            high=float(highs.max()) if highs.size else 0.0,
            sample=sample,
            lows=lows,
            highs=highs,
            channels=np.max([part.channels for part in parts], 0) if same else np.zeros(0),
        )

    @property
    def power(self) -> float:
        """Mean square of the sampled values."""
        return float(np.mean(self.sample**2)) if self.sample.size else 0.0

    def noise(self, scale: float, zero: float, quantizer: ActivationQuantizer) -> float:
        """Return the mean square error of a grid of the quantizer's type."""
        low, high = quantizer.grid.codes
        if "float" in quantizer.grid.kind.name:
            codes = np.clip(self.sample / scale, low, high).astype(quantizer.grid.kind).astype(np.float64)
        else:
            codes = np.clip(np.rint(self.sample / scale) + zero, low, high) - zero
        return float(np.mean((codes * scale - self.sample) ** 2)) if self.sample.size else 0.0

    def saturated(self, quantizer: ActivationQuantizer) -> tuple[float, float]:
        """Return the shares of values that saturate at the lower and at the upper end."""
        low, high = quantizer.grid.limits
        half = quantizer.grid.scale / 2
        sides = (self.sample < low - half, self.sample > high + half)
        below, above = (float(np.mean(side)) if side.size else 0.0 for side in sides)
        return below, above

    @property
    def below_zero(self) -> tuple[float, float]:
        """Shares of the values below 0, and of their energy."""
        negative = self.sample[self.sample < 0]
        energy = float((self.sample**2).sum())
        if not energy:
            return 0.0, 0.0
        return negative.size / self.sample.size, float((negative**2).sum()) / energy

    @property
    def is_signed(self) -> bool:
        """Whether values below 0 are more than a few."""
        return min(self.below_zero) >= SIGNED

    def full_fit(self, quantizer: ActivationQuantizer) -> GridFit:
        """Return the grid that holds all values, of the quantizer's type and symmetry.

        A grid without negative numbers is given some if the values need them.
        """
        return self._fit(quantizer, 1.0)

    def best_fit(self, quantizer: ActivationQuantizer) -> GridFit:
        """Return the grid of least error, of those that hold all values or a part of their range."""
        shrinks = (1.0,) if "float" in quantizer.grid.kind.name else _SHRINKS
        return min((self._fit(quantizer, float(part)) for part in shrinks), key=lambda fit: fit.noise)

    def _fit(self, quantizer: ActivationQuantizer, part: float) -> GridFit:
        low, high = min(self.low, 0.0) * part, max(self.high, 0.0) * part
        first, last = quantizer.grid.codes
        scale, zero = (high - low) / (last - first), 0.0
        if quantizer.is_symmetric:
            middle = quantizer.grid.zero
            scale, zero = max(high / (last - middle), -low / max(last - middle, 1.0)), middle
        elif quantizer.starts_at_zero and not self.is_signed:
            scale, zero = high / (last - first), first
        elif scale:
            zero = float(np.clip(np.rint(first - low / scale), first, last))
        scale = float(np.float32(scale)) or quantizer.grid.scale
        return GridFit(scale, zero, self.noise(scale, zero, quantizer))

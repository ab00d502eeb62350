"""Expected squared error of a grid on a histogram, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.metrics import ratio_db
from onnxfq.qparams import choose_qparams
from onnxfq.qtypes import QType
from onnxfq.statistics import TensorStatistics


@dataclass(frozen=True)
class Density:
    """A histogram as a piecewise uniform density: value ranges [low, high] with counts."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    counts: NDArray[np.float64]

    @staticmethod
    def of(statistics: TensorStatistics) -> Density:
        """Make the density of a tensor's histogram."""
        low, high = statistics.edges()
        return Density(low, high, statistics.counts.astype(np.float64))

    @property
    def power(self) -> float:
        """Sum of x^2 over all values."""
        low, high = self.low, self.high
        return float((self.counts * (low * low + low * high + high * high)).sum() / 3.0)


def squared_error(
    density: Density, scale: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return sum (fq(x) - x)^2 for each candidate grid {k * scale: low <= k <= high}.

    scale, low, high: [candidates]. Result: [candidates].

    With n = clamp(rint(t / s)) the integral of (fq(x) - x)^2 from 0 to t is
    G(t) = n * s^3 / 12 + (t - n * s)^3 / 3: n whole cells plus the part left over, which grows
    without bound outside the grid. A bin of count c adds c * (G(b) - G(a)) / (b - a); a bin that is
    one value adds c * (fq(a) - a)^2.
    """
    s = scale[:, None]

    def offset(t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        n = np.clip(np.rint(t / s), low[:, None], high[:, None])
        return n, t - n * s

    n_a, a = offset(density.low[None, :])
    n_b, b = offset(density.high[None, :])
    width = density.high - density.low
    # (b^3 - a^3) / 3 written as a product keeps its digits when the bin is narrow.
    same_cell = (a * a + a * b + b * b) / 3.0
    with np.errstate(divide="ignore", invalid="ignore"):
        across = ((n_b - n_a) * s**3 / 12.0 + (b**3 - a**3) / 3.0) / width
    mean = np.where((n_a == n_b) | (width == 0.0), same_cell, across)
    return np.asarray((mean * density.counts).sum(axis=1))


def grid_error(
    density: Density, rmin: NDArray[np.float64], rmax: NDArray[np.float64], qtype: QType, symmetric: bool
) -> NDArray[np.float64]:
    """Return the squared error for each candidate range, with the scale and zero point it leads to."""
    scale, zero = choose_qparams(rmin, rmax, qtype, symmetric)
    low = (qtype.qmin - zero).astype(np.float64)
    high = (qtype.qmax - zero).astype(np.float64)
    return squared_error(density, scale.astype(np.float64), low, high)


def expected_sqnr_db(statistics: TensorStatistics, scale: float, zero_point: int, qtype: QType) -> float:
    """Return the signal to quantization noise in dB that a grid gives on the observed values."""
    density = Density.of(statistics)
    steps = np.asarray([[qtype.qmin - zero_point], [qtype.qmax - zero_point]], np.float64)
    noise = squared_error(density, np.asarray([scale], np.float64), steps[0], steps[1])
    return ratio_db(density.power, float(noise[0]))

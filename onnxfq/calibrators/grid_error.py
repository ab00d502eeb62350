"""Expected squared error of a grid on a histogram, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from onnxfq.metrics import ratio_db
from onnxfq.qparams import choose_qparams
from onnxfq.qtypes import QTYPES, QType
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
    return _sum_of_bins(density, n_a == n_b, (n_b - n_a) * s**3 / 12.0, a, b)


def float_squared_error(density: Density, scale: NDArray[np.float64], qtype: QType) -> NDArray[np.float64]:
    """Return the same for each candidate grid {g * scale: g a finite number of the float type `qtype`}.

    scale: [candidates]. Result: [candidates]. Exact too, up to float64: with g_n the grid number nearest to
    t, the integral from 0 to t is G(t) = sum over k < n of (g_k+1 - g_k)^3 / 12 + (t - g_n)^3 / 3, odd in t:
    the formula of `squared_error` with cells of their own widths.
    """
    grid, middles, cells = _cells(qtype.name)
    s = scale[:, None]

    def offset(t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        steps = t / s
        n = np.searchsorted(middles, np.abs(steps))
        sign = np.where(steps < 0.0, -1.0, 1.0)
        return sign * n, t - sign * grid[n] * s

    def whole(n: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sign(n) * cells[np.abs(n).astype(np.int64)] * s**3)

    n_a, a = offset(density.low[None, :])
    n_b, b = offset(density.high[None, :])
    return _sum_of_bins(density, n_a == n_b, whole(n_b) - whole(n_a), a, b)


def _sum_of_bins(
    density: Density,
    one_cell: NDArray[np.bool_],
    between: NDArray[np.float64],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the error of all bins; a, b: how far the ends are from the grid; between: the cells between."""
    width = density.high - density.low
    # (b^3 - a^3) / 3 written as a product keeps its digits when the bin is narrow.
    same_cell = (a * a + a * b + b * b) / 3.0
    with np.errstate(divide="ignore", invalid="ignore"):
        across = (between + (b**3 - a**3) / 3.0) / width
    mean = np.where(one_cell | (width == 0.0), same_cell, across)
    return np.asarray((mean * density.counts).sum(axis=1))


@cache
def _cells(name: str) -> tuple[NDArray[np.float64], ...]:
    """Return the numbers >= 0 of a float type, the middles between them, and the error up to each."""
    qtype = QTYPES[name]
    codes = np.arange(1 << qtype.bits, dtype=np.uint8).view(qtype.dtype).astype(np.float64)
    grid = np.unique(codes[np.isfinite(codes) & (codes >= 0.0)])
    gaps = np.diff(grid)
    return grid, grid[:-1] + gaps / 2.0, np.concatenate([[0.0], np.cumsum(gaps**3 / 12.0)])


def grid_error(
    density: Density, rmin: NDArray[np.float64], rmax: NDArray[np.float64], qtype: QType, symmetric: bool
) -> NDArray[np.float64]:
    """Return the squared error for each candidate range, with the scale and zero point it leads to."""
    scale, zero = choose_qparams(rmin, rmax, qtype, symmetric)
    if qtype.is_float:
        return float_squared_error(density, scale.astype(np.float64), qtype)
    low = (qtype.qmin - zero).astype(np.float64)
    high = (qtype.qmax - zero).astype(np.float64)
    return squared_error(density, scale.astype(np.float64), low, high)


def expected_sqnr_db(statistics: TensorStatistics, scale: float, zero_point: int, qtype: QType) -> float:
    """Return the signal to quantization noise in dB that a grid gives on the observed values."""
    density = Density.of(statistics)
    if qtype.is_float:
        noise = float_squared_error(density, np.asarray([scale], np.float64), qtype)
        return ratio_db(density.power, float(noise[0]))
    steps = np.asarray([[qtype.qmin - zero_point], [qtype.qmax - zero_point]], np.float64)
    noise = squared_error(density, np.asarray([scale], np.float64), steps[0], steps[1])
    return ratio_db(density.power, float(noise[0]))

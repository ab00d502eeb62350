"""Expected squared error of a grid on a histogram, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.qtypes import QTYPES, QType
from onnxfq.numerics.spec import QuantSpec

Candidates = NDArray[np.float64]
"""One number per candidate: [candidates]."""


@dataclass(frozen=True)
class Density:
    """A histogram as a piecewise uniform density: value ranges [low, high] with counts.

    Attributes:
        low: lower ends of the ranges.
        high: upper ends of the ranges.
        counts: number of values in each range.
        rest: sum of x^2 of values outside all ranges, which every candidate grid rounds to 0.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    counts: NDArray[np.float64]
    rest: float = 0.0

    @staticmethod
    def from_statistics(statistics: TensorStatistics) -> Density:
        """Return the density of a tensor's histogram."""
        low, high = statistics.edges()
        return Density(low, high, statistics.counts.astype(np.float64))

    @cached_property
    def knots(self) -> tuple[NDArray[np.float64], ...]:
        """(ends, weights, points, counts) that reduce a sum over all values to a sum over few places.

        With G an integral of f, sum f(x) = sum of weights * G(ends) + sum of counts * f(points): neighbouring
        ranges share an end, and a range too narrow for a difference of G is one point.
        """
        width = self.high - self.low
        narrow = width <= 2.0**-24 * np.maximum(-self.low, self.high)
        density = np.where(narrow, 0.0, self.counts) / np.where(narrow, 1.0, width)
        ends = np.concatenate([self.high[~narrow], self.low[~narrow]])
        knots, place = np.unique(ends, return_inverse=True)
        density = density[~narrow]
        weights = np.bincount(place, np.concatenate([density, -density]), knots.size).astype(np.float64)
        return knots, weights, (self.low[narrow] + self.high[narrow]) / 2.0, self.counts[narrow]

    @property
    def power(self) -> float:
        """Sum of x^2 over all values."""
        low, high = self.low, self.high
        return self.rest + float((self.counts * (low * low + low * high + high * high)).sum() / 3.0)

    def select(self, wanted: NDArray[np.bool_]) -> Density:
        """Return the density of the wanted ranges only."""
        return Density(self.low[wanted], self.high[wanted], self.counts[wanted])

    def drop_rounded_to_zero(self, scale: float, qtype: QType) -> Density:
        """Return an equivalent density for grids of `scale` or larger, without ranges that they round to 0.

        A histogram of float32 has most of its bins near 0; they cost time and add a constant.
        """
        first = float(_cells(qtype.name)[0][1]) if qtype.is_float else 1.0
        kept = np.maximum(-self.low, self.high) > 0.5 * first * scale
        return replace(self.select(kept), rest=self.select(~kept).power + self.rest)


_Parts = Callable[[NDArray[np.float64], slice], tuple[Any, NDArray[np.float64]]]
"""(places, slice of candidates) -> (error of whole cells up to each place, its distance to the grid)."""

CHUNK = 1 << 15
"""Places times candidates that are processed at once, so that they fit into a core's cache."""


def compute_squared_error(
    density: Density, scale: Candidates, low: Candidates, high: Candidates
) -> Candidates:
    """Return sum (fq(x) - x)^2 for each candidate grid {k * scale: low <= k <= high}.

    With n = clamp(rint(t / s)) the integral of (fq(x) - x)^2 from 0 to t is
    G(t) = n * s^3 / 12 + (t - n * s)^3 / 3: n whole cells plus the remaining part, which grows without bound
    outside the grid. A bin of count c adds c * (G(b) - G(a)) / (b - a); a bin of one value adds
    c * (fq(a) - a)^2.
    """

    def parts(t: NDArray[np.float64], at: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        s = scale[at, None]
        n = t / s
        np.rint(n, n)
        np.maximum(n, low[at, None], out=n)
        np.minimum(n, high[at, None], out=n)
        away = n * s
        n *= s**3 / 12.0
        return n, np.subtract(t, away, away)

    return _integrate_error(density, scale.size, parts)


def float_squared_error(density: Density, scale: Candidates, qtype: QType) -> Candidates:
    """Return sum (fq(x) - x)^2 for each candidate grid {g * scale: g a finite number of float type `qtype`}.

    The result is exact up to float64: with g_n the grid number nearest to t, the integral from 0 to t is
    G(t) = sum over k < n of (g_k+1 - g_k)^3 / 12 + (t - g_n)^3 / 3, odd in t: the formula of
    `compute_squared_error` with cells of different widths.
    """
    grid, middles, cells = _cells(qtype.name)

    def parts(t: NDArray[np.float64], at: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        s = scale[at, None]
        steps = t / s
        n = np.searchsorted(middles, np.abs(steps))
        sign = np.where(steps < 0.0, -1.0, 1.0)
        return sign * cells[n] * s**3, t - sign * grid[n] * s

    return _integrate_error(density, scale.size, parts)


def saturation_error(density: Density, low: Candidates, high: Candidates) -> Candidates:
    """Return the sum of squared distances to [low, high] of the values outside it, for each candidate."""

    def parts(t: NDArray[np.float64], at: slice) -> tuple[float, NDArray[np.float64]]:
        return 0.0, t - np.minimum(np.maximum(t, low[at, None]), high[at, None])

    return _integrate_error(density, low.size, parts)


def _integrate_error(density: Density, candidates: int, parts: _Parts) -> Candidates:
    """Return the sum of squared distances of all values, from the integral at the ends of the bins."""
    knots, weights, points, counts = density.knots
    result = np.zeros(candidates)
    size = max(CHUNK // max(knots.size, 1), 1)
    for start in range(0, candidates, size):
        at = slice(start, start + size)
        whole, away = parts(knots, at)
        cube = away * away
        cube *= away
        cube /= 3.0
        cube += whole
        # Not BLAS, whose order of addition depends on row and threads: equal grids must have equal errors.
        result[at] = np.einsum("ij,j->i", cube, weights)
        if points.size:
            away = parts(points, at)[1]
            result[at] += np.einsum("ij,j->i", away * away, counts)
    # The rounding of sums that cancel must not give a negative error.
    return np.maximum(result, 0.0) + density.rest


@cache
def _cells(name: str) -> tuple[NDArray[np.float64], ...]:
    """Return the numbers >= 0 of a float type, the midpoints between them, and the error up to each."""
    qtype = QTYPES[name]
    codes = np.arange(1 << qtype.bits, dtype=np.uint8).view(qtype.dtype).astype(np.float64)
    grid = np.unique(codes[np.isfinite(codes) & (codes >= 0.0)])
    gaps = np.diff(grid)
    return grid, grid[:-1] + gaps / 2.0, np.concatenate([[0.0], np.cumsum(gaps**3 / 12.0)])


def grid_error(
    density: Density, rmin: Candidates, rmax: Candidates, spec: QuantSpec, saturation_weight: float = 1.0
) -> Candidates:
    """Return the squared error for each candidate range, with its scale and zero point under `spec`.

    Args:
        density: the observed values.
        rmin: lower ends of the candidate ranges.
        rmax: upper ends of the candidate ranges.
        spec: number format and symmetry.
        saturation_weight: factor of the error of values beyond the ends of the grid.
    """
    qtype = spec.qtype
    scale32, zero = choose_qparams(rmin, rmax, qtype, spec.symmetric, ParamRules(spec.power_of_two))
    scale = scale32.astype(np.float64)
    error = _error_on_grids(density, scale, zero.astype(np.float64), qtype)
    if saturation_weight != 1.0:
        low, high = qtype.qmin - zero.astype(np.float64), qtype.qmax - zero.astype(np.float64)
        error += (saturation_weight - 1.0) * saturation_error(density, low * scale, high * scale)
    return error


def range_sqnr_db(statistics: TensorStatistics, limits: tuple[float, float], spec: QuantSpec) -> float:
    """Return the SQNR in dB of the observed values on the grid of a range."""
    scale, zero_point = choose_qparams(*limits, spec.qtype, spec.symmetric, ParamRules(spec.power_of_two))
    return estimate_sqnr_db(statistics, float(scale), int(zero_point), spec.qtype)


def estimate_sqnr_db(statistics: TensorStatistics, scale: float, zero_point: int, qtype: QType) -> float:
    """Return the SQNR in dB of the observed values on a grid."""
    density = Density.from_statistics(statistics)
    return ratio_db(density.power, estimate_noise(density, scale, zero_point, qtype))


def estimate_noise(density: Density, scale: float, zero_point: float, qtype: QType) -> float:
    """Return the sum of squared errors of the observed values on one grid."""
    if zero_point != round(zero_point):
        # A fraction shifts the grid: the values are shifted with it and rounded to whole steps.
        moved = scale * zero_point
        density = Density(density.low + moved, density.high + moved, density.counts)
        zero_point = 0
    at, zero = np.asarray([scale], np.float64), np.asarray([zero_point], np.float64)
    return float(_error_on_grids(density, at, zero, qtype)[0])


def _error_on_grids(density: Density, scale: Candidates, zero: Candidates, qtype: QType) -> Candidates:
    """Return sum (fq(x) - x)^2 for each scale and zero point of `qtype`."""
    if qtype.is_float:
        return float_squared_error(density, scale, qtype)
    return compute_squared_error(density, scale, qtype.qmin - zero, qtype.qmax - zero)

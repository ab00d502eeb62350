"""MSE: the range whose grid has the least squared error on the histogram."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxfq.calibration.calibrators.grid_error import Candidates, Density, grid_error
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

OCTAVES = 7
"""The smallest candidate is the observed range divided by 2^7; below it an 8-bit grid has no step left."""
STEPS = 8
"""Candidates per octave in the first pass; each later pass tries as many around the best one."""

_Error = Callable[[Candidates], Candidates]

_ALL = np.exp2(np.linspace(0.0, -OCTAVES, OCTAVES * STEPS + 1))
# Factors from one octave above to one below; the middle one is 1.
_NEAR = np.exp2(np.linspace(1.0, -1.0, 2 * STEPS + 1))


def mse(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the (rmin, rmax) of least expected squared error, with the scales of `spec`.

    Both ends shrink together first; asymmetric ranges are then refined one end at a time until
    neither moves. The full range and each step's start are among the candidates: no step increases the
    error, and the result is never worse than min-max. A symmetric result is within 0.2% of the best range
    in its neighbourhood.
    """
    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    smallest, _ = choose_qparams(low * _ALL[-1], high * _ALL[-1], spec.qtype, spec.symmetric)
    density = Density.from_statistics(statistics).drop_rounded_to_zero(float(smallest), spec.qtype)

    def error_of(left: Candidates, right: Candidates) -> Candidates:
        rmin, rmax = np.broadcast_arrays(low * left, high * right)
        return grid_error(density, rmin, rmax, spec)

    if spec.symmetric:
        # Magnitudes are limited, not scaled: every scale is among the candidates.
        def limit(factor: Candidates) -> tuple[Candidates, Candidates]:
            amax = statistics.amax * factor
            return np.maximum(low, -amax), np.minimum(high, amax)

        best = _search(lambda f: grid_error(density, *limit(f), spec), _ALL, passes=2)
        rmin, rmax = limit(np.asarray(best))
        return float(rmin), float(rmax)
    left = right = _search(lambda f: error_of(f, f), _ALL)
    for _ in range(4 if low < 0.0 < high else 0):
        before = (left, right)
        left = _search(lambda f, end=right: error_of(f, end), left * _NEAR)  # type: ignore[misc]
        right = _search(lambda f, end=left: error_of(end, f), right * _NEAR)  # type: ignore[misc]
        if (left, right) == before:
            break
    return low * left, high * right


def _search(error: _Error, factors: Candidates, passes: int = 1) -> float:
    """Return the factor of least error, at most 1, from `factors` and then finer ones around the best."""
    best = _least(error, factors)
    for finer in range(1, passes + 1):
        best = _least(error, best * _NEAR ** (1.0 / STEPS**finer))
    return best


def _least(error: _Error, factors: Candidates) -> float:
    factors = np.clip(factors, _ALL[-1], 1.0)
    return float(factors[int(np.argmin(error(factors)))])

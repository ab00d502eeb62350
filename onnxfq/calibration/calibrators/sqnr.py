"""SQNR: AIMET's tf_enhanced search over a fixed set of grids, with saturation weighted by three."""

from __future__ import annotations

import numpy as np

from onnxfq.calibration.calibrators.grid_error import Candidates, Density, grid_error
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

GAMMA = 3.0
SYMMETRIC_STEPS = 100
ASYMMETRIC_STEPS = 16
OFFSETS = 20


def sqnr(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the range of least noise: squared rounding error + 3 * squared distance of saturated values.

    Source: AIMET's `tf_enhanced` (TfEnhancedEncodingAnalyzer; SqnrEncodingAnalyzer in its second version).
    Symmetric: 100 ranges, k/100 of the observed one. Asymmetric: 16 scales, k/16 of the observed one, each
    with 21 zero points spread evenly over the grid, cut to the observed range; and the observed range.
    AIMET's candidates just above the observed range, which serve its rounding, are left out. The noise is
    computed here in closed form from the bins; AIMET computes it on the middles of 512 or 2048 equal bins.
    """
    low, high = min(statistics.rmin, 0.0), max(statistics.rmax, 0.0)
    rmin, rmax = (_symmetric if spec.symmetric else _asymmetric)(low, high)
    smallest, _ = choose_qparams(rmin, rmax, spec.qtype, spec.symmetric)
    density = Density.from_statistics(statistics).drop_rounded_to_zero(float(smallest.min()), spec.qtype)
    best = int(np.argmin(grid_error(density, rmin, rmax, spec, GAMMA)))
    return float(rmin[best]), float(rmax[best])


def _symmetric(low: float, high: float) -> tuple[Candidates, Candidates]:
    # The observed range comes first, because the first of equal ones wins.
    ends = max(-low, high) * (np.arange(SYMMETRIC_STEPS, 0, -1) / SYMMETRIC_STEPS)
    return np.maximum(low, -ends), np.minimum(high, ends)


def _asymmetric(low: float, high: float) -> tuple[Candidates, Candidates]:
    width = (high - low) * np.arange(ASYMMETRIC_STEPS, 0, -1)[:, None] / ASYMMETRIC_STEPS
    below = np.linspace(1.0, 0.0, OFFSETS + 1)
    rmin = np.maximum(low, -width * below).ravel()
    rmax = np.minimum(high, width * (1.0 - below)).ravel()
    kept = rmin < rmax
    return np.append(low, rmin[kept]), np.append(high, rmax[kept])

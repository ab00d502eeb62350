"""Percentile: a range that clips a fixed share of the largest values, of all or at each end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.method_parameters import Parameter, require_numbers
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec

DEFAULT_PERCENTILE = 99.99


def percentile(
    statistics: TensorStatistics, spec: QuantSpec, percent: float = DEFAULT_PERCENTILE
) -> tuple[float, float]:
    """Return the range that holds `percent` % of the values.

    Symmetric: the cut is on magnitudes (NVIDIA pytorch-quantization's histogram calibrator).
    Asymmetric: half of the share is cut at each end. An end is the middle of the quantile's bin, so within
    1/128 of the quantile; it is the observed end if less than one value is left out.
    """
    low, high = statistics.edges()
    # Rounded, so that 0.1% of 60,000 values is 60 and not the float below.
    left_out = round((1.0 - percent / 100.0) * float(statistics.counts.sum()), 6)
    if spec.symmetric:
        amax = _cut(
            np.minimum(np.abs(low), np.abs(high)), np.maximum(-low, high), statistics.counts, left_out
        )
        return max(statistics.rmin, -amax), min(statistics.rmax, amax)
    rmin = -_cut(-high, -low, statistics.counts, left_out / 2.0)
    rmax = _cut(low, high, statistics.counts, left_out / 2.0)
    return min(rmin, rmax), max(rmin, rmax)


def check_percent(parameters: tuple[Parameter, ...]) -> str:
    """Return the rule that the parameter breaks; empty if valid."""
    (percent,) = require_numbers(parameters, 1)
    fits = 50.0 <= percent <= 100.0
    return "" if fits else "the percentile must be a number from 50 to 100, as in percentile:99.9"


def _cut(
    near: NDArray[np.float64], far: NDArray[np.float64], counts: NDArray[np.int64], left_out: float
) -> float:
    """Return the cut beyond which at most `left_out` values lie.

    Args:
        near: smaller ends of the bins.
        far: larger ends of the bins.
        counts: number of values in each bin.
        left_out: number of values beyond the cut.
    """
    order = np.argsort(-far, kind="stable")
    if left_out < 1.0:
        return float(far[order[0]])
    last = order[quantile_bin(counts[order], left_out)]
    return float(near[last] + far[last]) / 2.0


def quantile_bin(counts: NDArray[np.int64], left_out: float) -> int:
    """Return the index of the last bin with at most `left_out` values in the bins before it."""
    before = np.cumsum(counts) - counts
    return int(np.flatnonzero(before <= left_out)[-1])


def percentile_each_end(
    statistics: TensorStatistics, spec: QuantSpec, percent: float = DEFAULT_PERCENTILE
) -> tuple[float, float]:
    """Return the range beyond whose ends 100 - `percent` % of the values lie at each end.

    Symmetric scales hold the larger end. Source: AIMET's PercentileEncodingAnalyzer.
    """
    asymmetric = spec.model_copy(update={"symmetric": False})
    return percentile(statistics, asymmetric, max(2.0 * percent - 100.0, 0.0))

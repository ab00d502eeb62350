"""Min-max: the whole observed range, without saturation."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec


def minmax(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return (rmin, rmax) as observed; for symmetric int2 as `use_lowest_number` says."""
    rmin, rmax = use_lowest_number(np.float64(statistics.rmin), np.float64(statistics.rmax), spec)
    return float(rmin), float(rmax)


def use_lowest_number(rmin: Any, rmax: Any, spec: QuantSpec) -> tuple[Any, Any]:
    """Return the range (rmin, rmax), for symmetric int2 with rmax limited to half the largest magnitude.

    int2 has the numbers -2, -1, 0 and 1. A scale that holds both ends of a range of equal ends leaves -2
    unused, a quarter of the grid; half of that scale uses it, and values above it saturate. Wider types lose
    less than an eighth of it, and their ranges are returned unchanged.

    Args:
        rmin: arrays or torch tensors of one shape, as rmax.
        rmax: upper ends.
        spec: number format and symmetry.

    Source: AIMET's MinMaxEncodingAnalyzer for 3 steps (Qualcomm, BSD-3-Clause).
    """
    if not spec.symmetric or (spec.grid.qmin, spec.grid.qmax) != (-2, 1):
        return rmin, rmax
    top = rmax.clip(max=(-rmin).clip(min=rmax) / 2)
    return rmin.clip(max=top), top

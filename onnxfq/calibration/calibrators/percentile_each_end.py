"""Percentile of each end: a range that leaves out a fixed share of the values at either end."""

from __future__ import annotations

from onnxfq.calibration.calibrators.percentile import DEFAULT_PERCENTILE, percentile
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec


def percentile_each_end(
    statistics: TensorStatistics, spec: QuantSpec, percent: float = DEFAULT_PERCENTILE
) -> tuple[float, float]:
    """Return the range beyond whose ends 100 - `percent` % of the values lie at each end.

    Symmetric scales hold the larger end. Source: AIMET's PercentileEncodingAnalyzer.
    """
    asymmetric = spec.model_copy(update={"symmetric": False})
    return percentile(statistics, asymmetric, max(2.0 * percent - 100.0, 0.0))

"""Auto: choice of a method per tensor by highest SQNR, with a bound for the middle half of the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from onnxfq.calibration.calibrators.entropy import entropy
from onnxfq.calibration.calibrators.grid_error import Candidates, Density, grid_error
from onnxfq.calibration.calibrators.minmax import minmax
from onnxfq.calibration.calibrators.mse import mse
from onnxfq.calibration.calibrators.percentile import percentile
from onnxfq.calibration.calibrators.sqnr import GAMMA, sqnr
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.spec import QuantSpec

METHODS: Mapping[str, Callable[[TensorStatistics, QuantSpec], tuple[float, float]]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
    "sqnr": sqnr,
}
"""Candidate methods; the first of equal ones wins. Methods that depend on the order of feeds are excluded."""


KEPT_DB = 10.0 * math.log10(12.0)
"""SQNR of a value as large as one step, 10.8 dB: rounding to steps s has the mean squared error s^2 / 12.

A grid keeps values that reach it; smaller ones are less than a step, and most of them become 0.
"""


def auto(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the range of METHODS with the least expected noise that keeps the middle half.

    Noise is the squared error with saturated values counted three times, as in AIMET's `tf_enhanced`: errors
    of rounding have both signs and cancel in sums, errors of saturation do not. The largest values dominate
    it: a rare exact one outweighs all small ones lost. Therefore only ranges that keep the middle half are
    compared: KEPT_DB or more over the nonzero values with magnitudes from the first to the third quartile.
    If no method keeps it, all are compared, and a warning of `calibrate` names the tensor.
    """
    if not statistics.counts.size:
        return statistics.rmin, statistics.rmax
    ranges = [method(statistics, spec) for method in METHODS.values()]
    whole, middle = estimate_figures(statistics, spec, ranges)
    kept = middle >= KEPT_DB
    return ranges[int(np.argmax(np.where(kept, whole, -np.inf) if kept.any() else whole))]


def estimate_figures(
    statistics: TensorStatistics, spec: QuantSpec, ranges: list[tuple[float, float]]
) -> tuple[Candidates, Candidates]:
    """Return the expected SQNR in dB of each of `ranges`, over all values and over the middle half.

    Over all values, saturated ones count GAMMA times.
    """
    density = Density.from_statistics(statistics)
    rmin, rmax = np.asarray(ranges, np.float64).T
    whole, middle = (
        np.asarray([ratio_db(part.power, float(n)) for n in grid_error(part, rmin, rmax, spec, weight)])
        for part, weight in ((density, GAMMA), (middle_half(density), 1.0))
    )
    return whole, middle


def middle_half(density: Density) -> Density:
    """Return the part between the first and the third quartile of the magnitudes that are not 0.

    Bins are included as a whole, by their middle value. The part is never empty if a value is nonzero.
    """
    # The first bin of each sign has values below any normal float32, which count as 0.
    far = np.maximum(-density.low, density.high)
    kept = density.select(far > 2.0 * float(np.finfo(np.float32).tiny))
    order = np.argsort(np.maximum(-kept.low, kept.high), kind="stable")
    counts = kept.counts[order]
    share = (np.cumsum(counts) - counts / 2.0) / max(counts.sum(), 1.0)
    wanted = np.zeros(order.size, bool)
    wanted[order] = (share >= 0.25) & (share <= 0.75)
    return kept.select(wanted)

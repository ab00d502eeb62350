"""Auto: of the ranges that the other methods give, the best for all values that keeps the typical one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onnxfq.calibration.calibrators.entropy import entropy
from onnxfq.calibration.calibrators.grid_error import Candidates, Density, grid_error
from onnxfq.calibration.calibrators.minmax import minmax
from onnxfq.calibration.calibrators.mse import mse
from onnxfq.calibration.calibrators.percentile import percentile
from onnxfq.calibration.calibrators.sqnr import sqnr
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
"""The methods that are asked, of equals the first is taken; those that hang on order are not."""


TYPICAL_DB = 14.0
"""What the typical value must keep: an error of a fifth of it.

On real networks more asked too much: for 20 dB there the input of a filter bank lost 8 dB of 28 over all.
"""


def auto(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the range of METHODS with the highest expected SQNR that does not lose the typical value.

    The SQNR over all values is ruled by the largest: a rare one kept exact pays for all small ones lost. So
    a second one is looked at, over the middle half: the values that are not 0 with magnitudes between the
    first and the third quartile. Of the ranges with 14 dB there, the one with the highest SQNR is taken;
    where none has that, the one whose lower figure of the two is the highest.
    So the result has 14 dB in the middle half whenever a method has, and then no method that has them too has
    a higher SQNR; else no method has both figures higher. No publication is followed.
    """
    if not statistics.counts.size:
        return statistics.rmin, statistics.rmax
    ranges = [method(statistics, spec) for method in METHODS.values()]
    whole, middle = estimate_figures(statistics, spec, ranges)
    kept = middle >= TYPICAL_DB
    score = np.where(kept, whole, -np.inf) if kept.any() else np.minimum(whole, middle)
    return ranges[int(np.argmax(score))]


def estimate_figures(
    statistics: TensorStatistics, spec: QuantSpec, ranges: list[tuple[float, float]]
) -> tuple[Candidates, Candidates]:
    """Return the expected SQNR in dB of each of `ranges`, over all values and over the middle half."""
    density = Density.from_statistics(statistics)
    rmin, rmax = np.asarray(ranges, np.float64).T
    whole, middle = (
        np.asarray([ratio_db(part.power, float(noise)) for noise in grid_error(part, rmin, rmax, spec)])
        for part in (density, middle_half(density))
    )
    return whole, middle


def middle_half(density: Density) -> Density:
    """Return the part between the first and the third quartile of the magnitudes that are not 0.

    In whole bins: a bin counts whose middle value does. Never empty where a value is not 0.
    """
    # The first bin of each sign holds what is smaller than any normal float32: as good as 0.
    far = np.maximum(-density.low, density.high)
    kept = density.select(far > 2.0 * float(np.finfo(np.float32).tiny))
    order = np.argsort(np.maximum(-kept.low, kept.high), kind="stable")
    counts = kept.counts[order]
    share = (np.cumsum(counts) - counts / 2.0) / max(counts.sum(), 1.0)
    wanted = np.zeros(order.size, bool)
    wanted[order] = (share >= 0.25) & (share <= 0.75)
    return kept.select(wanted)

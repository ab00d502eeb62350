"""Best error: the method of highest SQNR for each tensor, with a bound for the middle half of the values."""

from __future__ import annotations

import math
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
"""Candidate methods; the first of equal ones wins. Methods that depend on the order of feeds are excluded."""


TYPICAL_DB = 14.0
"""Least SQNR of the middle half: an error of a fifth of the typical value.

A higher bound costs too much on real networks: with 20 dB the input of a filter bank lost 8 of 28 dB overall.
"""
# Two rules without this bound lost more than they gained: the range whose lower figure is highest (a
# voice-activity network +2 dB, a sentence encoder -5 dB), and saturation counted three times (the
# encoder +1 dB, a text detector -0.012 IoU). Four standard errors more for saturation, with this bound, gave
# 14 networks 0.14 dB in the mean, but took 0.1 to 0.3 dB of two, a U-net among them, in three recipes each.

KEPT_DB = 10.0 * math.log10(12.0)
"""SQNR of values as large as one step, 10.8 dB: rounding to steps s has the mean squared error s^2 / 12.

Below it the middle half counts as lost, and `calibrate` warns.
"""

ROOMY_BITS = 16
"""Bits of an integer grid from which on the ranges that were seen are widened."""

HEADROOM = 4.0
"""Factor of these ranges, for larger values of other data: two of 16 bits, which 8-bit weights hide.

On nine trained networks in qnn-a16w8, calibrated on 8 samples and on 24 or 28, the SQNR on 16 others is 0 to
12 dB higher with a factor of 1.5, 0.4 dB in the median; 2 and 3 give the same within 1 dB. If one of 64
samples is larger than the others by more than the factor, 5 values beyond the range hold 90% of the error.
"""


def best_error(statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """Return the range of METHODS with the highest expected SQNR that preserves typical values.

    The largest values dominate the SQNR over all values: a rare exact one outweighs all small ones lost.
    Therefore a second SQNR covers the middle half: the nonzero values with magnitudes between the first and
    the third quartile. The range with the highest SQNR among those with 14 dB in the middle half is returned;
    if none has 14 dB, the range whose lower figure of the two is highest.
    The result has 14 dB in the middle half whenever a method has, and no such method has a higher SQNR;
    otherwise no method is better in both figures. The rule follows no publication.
    For integers of ROOMY_BITS the range is HEADROOM times as wide, up to the largest float32.
    """
    ranges = [know_range(name, method, statistics, spec) for name, method in METHODS.items()]
    rmin, rmax = ranges[choose_range(statistics, spec, ranges)]
    is_roomy = spec.qtype.bits >= ROOMY_BITS and not spec.qtype.is_float
    if not is_roomy:
        return rmin, rmax
    largest = float(np.finfo(np.float32).max)
    return max(rmin * HEADROOM, -largest), min(rmax * HEADROOM, largest)


def know_range(
    name: str,
    method: Callable[[TensorStatistics, QuantSpec], tuple[float, float]],
    statistics: TensorStatistics,
    spec: QuantSpec,
) -> tuple[float, float]:
    """Return the range of a method, which is chosen once for the same statistics."""
    known, key = statistics.ranges, (name, spec)
    if key not in known:
        known[key] = method(statistics, spec)
    return known[key]


def choose_range(statistics: TensorStatistics, spec: QuantSpec, ranges: list[tuple[float, float]]) -> int:
    """Return the place of the best of `ranges`, as `best_error` defines it; the first of equal ones."""
    whole, middle = estimate_figures(statistics, spec, ranges)
    kept = middle >= TYPICAL_DB
    score = np.where(kept, whole, -np.inf) if kept.any() else np.minimum(whole, middle)
    return int(np.argmax(score))


def estimate_figures(
    statistics: TensorStatistics, spec: QuantSpec, ranges: list[tuple[float, float]]
) -> tuple[Candidates, Candidates]:
    """Return the expected SQNR in dB of each of `ranges`, over all values and over the middle half."""
    density = Density.from_statistics(statistics)
    rmin, rmax = np.asarray(ranges, np.float64).T

    def figures_of(part: Density) -> Candidates:
        power = part.power
        return np.asarray([ratio_db(power, float(noise)) for noise in grid_error(part, rmin, rmax, spec)])

    return figures_of(density), figures_of(middle_half(density))


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

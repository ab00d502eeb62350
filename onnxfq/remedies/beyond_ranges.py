"""`describe_beyond`: how much of the error of unseen samples comes from values beyond the ranges."""

from __future__ import annotations

import math

import numpy as np

from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise, saturation_error
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.stages.statistics_source import GatheredStatistics


def describe_beyond(statistics: GatheredStatistics, encodings: Encodings) -> str:
    """Return the share of the rounding error of activations that values beyond their ranges make, for a note.

    The error of each tensor, on samples that gave no range, is relative to its size there. "" without any.

    Args:
        statistics: with and without the unseen samples.
        encodings: from those without.
    """
    whole, beyond, worst = 0.0, 0.0, (0.0, "")
    for one in encodings.encodings:
        known, seen = statistics.whole.tensors.get(one.tensor), statistics.seen.tensors.get(one.tensor)
        if known is None or seen is None or known is seen or one.spec.dynamic or one.scale.size != 1:
            continue
        density = _subtract(known, seen)
        if not (density.power > 0.0 and math.isfinite(density.power)):
            continue
        noise, outside = (error / density.power for error in _measure(density, one))
        whole, beyond, worst = whole + noise, beyond + outside, max(worst, (outside, one.tensor))
    if not whole:
        return ""
    most = f", most of it at {worst[1]!r}" if beyond else ""
    samples = statistics.whole.data.samples - statistics.seen.data.samples
    share = f"{beyond / whole:.0%} of the error of activations"
    return f"values beyond the ranges make {share} on {samples} unseen samples{most}"


def _subtract(whole: TensorStatistics, seen: TensorStatistics) -> Density:
    """Return the values of the unseen samples: all values without the seen ones."""
    low, high = whole.edges()
    counts = whole.counts.astype(np.float64)
    counts[np.searchsorted(whole.bins, seen.bins)] -= seen.counts
    return Density(low, high, counts).select(counts > 0)


def _measure(density: Density, encoding: Encoding) -> tuple[float, float]:
    """Return the squared error of the values on a grid, and of those that are beyond it."""
    scale, zero, qtype = float(encoding.scale.item()), float(encoding.zero_point.item()), encoding.spec.qtype
    low, high = (np.asarray([(limit - zero) * scale]) for limit in (qtype.qmin, qtype.qmax))
    return estimate_noise(density, scale, zero, qtype), float(saturation_error(density, low, high)[0])

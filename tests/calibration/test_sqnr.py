"""SQNR: AIMET's candidates and cost, written once more by loops over the data itself."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfq.calibration.calibrators.sqnr import sqnr
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

RNG = np.random.default_rng(12)
DATA = {
    "normal": RNG.normal(size=6000),
    "laplace": RNG.laplace(size=6000) + 0.4,
    "relu": np.maximum(RNG.normal(size=6000), 0),
    "negative": -RNG.gamma(2.0, size=6000),
    "outliers": np.concatenate([RNG.normal(size=6000), [40.0, -22.0]]),
}
SPECS = [
    QuantSpec(qtype=name, symmetric=name[0] == "i") for name in ("int8", "int4", "uint8", "uint4", "int6")
]


def candidates(low, high, spec):
    """Every (rmin, rmax) that AIMET's enhanced scheme tries, except beyond the observed range."""
    if spec.symmetric:
        amax = max(-low, high)
        return [(-amax * k / 100, amax * k / 100) for k in range(1, 101)]
    result = [(low, high)]
    for k in range(1, 17):
        width = (high - low) * k / 16
        for i in range(21):
            rmin = max(low, -width * (1 - i / 20))
            rmax = min(high, width * i / 20)
            if rmin < rmax:
                result.append((rmin, rmax))
    return result


def cost(x, rmin, rmax, spec):
    """Squared error of rounding inside the grid, three times the squared distance to its ends outside."""
    qmin, qmax = spec.qtype.qmin, spec.qtype.qmax
    scale, zero = map(float, choose_qparams(rmin, rmax, spec.qtype, spec.symmetric))
    low, high = scale * (qmin - zero), scale * (qmax - zero)
    rounded = scale * (np.clip(np.round(x / scale) + zero, qmin, qmax) - zero)
    beyond = np.maximum(x - high, 0) ** 2 + np.maximum(low - x, 0) ** 2
    return float(((rounded - x) ** 2 + 2 * beyond).sum())


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", DATA)
def test_it_is_the_least_cost_of_the_candidates(name, spec):
    """On the data itself no candidate costs much less than the one chosen, which is one of them."""
    x = DATA[name].astype(np.float32).astype(np.float64)
    stats = TensorStatistics.from_array(x.astype(np.float32))
    low, high = min(stats.rmin, 0.0), max(stats.rmax, 0.0)
    chosen = sqnr(stats, spec)
    every = candidates(low, high, spec)
    cut = [(max(a, low), min(b, high)) for a, b in every]
    assert min(abs(a - chosen[0]) + abs(b - chosen[1]) for a, b in cut) < 1e-6 * (high - low)
    # Values are taken as even inside a bin of 1/64, which moves the noise of neighbouring candidates.
    assert cost(x, *chosen, spec) <= 1.02 * min(cost(x, a, b, spec) for a, b in every)

"""The calibrators' names, and what holds for all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from onnxfq.calibrators import CALIBRATORS, DEFAULT_CALIBRATOR, calibrator_by_name
from onnxfq.errors import SpecError
from onnxfq.qparams import choose_qparams
from onnxfq.qtypes import QTYPES
from onnxfq.statistics import TensorStatistics

NAMES = [*CALIBRATORS, "percentile:99", "percentile:100"]
SCHEMES = [(q, s) for q in QTYPES.values() for s in ({True} if q.is_float else {q.signed, False})]
RNG = np.random.default_rng(7)
LARGEST = np.float32(np.finfo(np.float32).max)
DATA = {
    "normal": RNG.normal(size=3000),
    "relu": np.maximum(RNG.normal(size=3000), 0),
    "laplace": RNG.laplace(size=3000) + 0.5,
    "negative": -np.abs(RNG.normal(size=3000)) - 0.1,
    "positive, far from 0": RNG.uniform(5, 6, 3000),
    "outlier": np.append(RNG.normal(size=3000), 500.0),
    "few values": np.asarray([-1.0, 0.0, 2.0] * 9),
    "one value": np.full(9, 0.3),
    "zeros": np.zeros(9),
    "subnormal": RNG.normal(size=99) * 1e-40,
    "huge": RNG.uniform(-1, 1, size=999) * LARGEST,
    "all of float32": np.asarray([-LARGEST, LARGEST, 1e-45, 0.0]),
}


def gathered(name):
    """Statistics of one of DATA."""
    return TensorStatistics.from_array(DATA[name].astype(np.float32))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", DATA)
def test_range_lies_within_the_observed_one_and_gives_a_scale(name, data):
    """No calibrator looks beyond the data and 0, warns, or gives a range that no scale belongs to."""
    stats = gathered(data)
    limit = stats.amax if name == "entropy" else None  # symmetric entropy gives [-amax, amax]
    for qtype, symmetric in SCHEMES:
        rmin, rmax = calibrator_by_name(name)(stats, qtype, symmetric)
        assert rmin <= rmax
        assert min(stats.rmin, 0.0 if limit is None or not symmetric else -limit) <= rmin
        assert rmax <= max(stats.rmax, 0.0 if limit is None or not symmetric else limit)
        choose_qparams(rmin, rmax, qtype, symmetric)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", ["normal", "relu", "outlier"])
def test_shards_in_any_order_give_the_same_range(name, data):
    """Calibrators are pure functions of statistics, and merged statistics do not know the order."""
    whole = gathered(data)
    parts = [TensorStatistics.from_array(p) for p in np.array_split(DATA[data].astype(np.float32), 3)]
    for qtype, symmetric in ((QTYPES["int8"], True), (QTYPES["uint8"], False)):
        expected = calibrator_by_name(name)(whole, qtype, symmetric)
        for a, b, c in itertools.permutations(parts):
            assert calibrator_by_name(name)(a.merge(b).merge(c), qtype, symmetric) == expected


@pytest.mark.parametrize("name", NAMES)
def test_statistics_of_nothing_give_the_range_of_nothing(name):
    """No values, no range: the empty interval, which choose_qparams refuses with a reason."""
    for qtype, symmetric in SCHEMES:
        limits = calibrator_by_name(name)(TensorStatistics(), qtype, symmetric)
        assert limits == (np.inf, -np.inf)
        with pytest.raises(SpecError, match="a range must be finite"):
            choose_qparams(*limits, qtype, symmetric)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_names(name):
    """A name gives its function; the default is one of them."""
    assert calibrator_by_name(name) is CALIBRATORS[name]
    assert DEFAULT_CALIBRATOR in CALIBRATORS


def test_minmax_is_what_was_observed():
    """Min-max is NumPy's min and max, for every scheme."""
    x = DATA["laplace"].astype(np.float32)
    for scheme in SCHEMES:
        assert CALIBRATORS["minmax"](TensorStatistics.from_array(x), *scheme) == (x.min(), x.max())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mze", "unknown calibrator 'mze'; nearest: mse"),
        ("zz", "unknown calibrator 'zz'; known: entropy, minmax, mse, percentile"),
        ("mse:3", "unknown calibrator 'mse:3'; nearest: mse"),
        ("mse:", "unknown calibrator 'mse:'; nearest: mse"),
        ("percentile:", "calibrator 'percentile:': the percentile must be a number from 50 to 100"),
        ("percentile:x", "must be a number from 50 to 100, as in percentile:99.9"),
        ("percentile:49.9", "must be a number from 50 to 100"),
        ("percentile:101", "must be a number from 50 to 100"),
        ("percentile:nan", "must be a number from 50 to 100"),
    ],
)
def test_unknown_names(name, words):
    """A name that is none is refused with the nearest, a percentile with its limits."""
    with pytest.raises(SpecError) as caught:
        calibrator_by_name(name)
    assert words in str(caught.value)

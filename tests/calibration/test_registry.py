"""The calibrators' names, and what holds for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.calibration.calibrators import DEFAULT_CALIBRATOR, Calibrator, observing_names, spellings
from onnxfq.calibration.calibrators.best_error import HEADROOM, ROOMY_BITS
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import SpecError
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec

NAMES = [*observing_names(), "percentile:99", "percentile:100", "moving_average:0.5"]
SPECS = [
    QuantSpec(qtype=q, symmetric=s, power_of_two=p)
    for q in QTYPES.values()
    for s in ({True} if q.is_float else {q.signed, False})
    for p in ((False, True) if q.bits == 8 else (False,))
]


def gathered(x, feeds=3):
    """Statistics of x, with the ranges of that many feeds."""
    x = np.asarray(x, np.float32)
    ranges = [(part.min(), part.max()) for part in np.array_split(x, feeds) if part.size]
    return replace(TensorStatistics.from_array(x), feed_ranges=np.asarray(ranges, np.float32))


def check(stats, name, spec):
    """A calibrator looks at nothing beyond the data and 0, and its range has a scale, finite and positive.

    In 16 bits `best_error` leaves room for larger values.
    """
    rmin, rmax = Calibrator.parse(name)(stats, spec)
    if name == "best_error" and spec.qtype.bits >= ROOMY_BITS and not spec.qtype.is_float:
        rmin, rmax = rmin / HEADROOM, rmax / HEADROOM
    # An average in float32, as torch's, may be rounded past what it averages.
    slack = 2.0**-22 * stats.amax if "average" in name else 0.0
    assert min(stats.rmin, 0.0) - slack <= rmin <= rmax <= max(stats.rmax, 0.0) + slack
    scale, _ = choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, ParamRules(spec.power_of_two))
    assert np.isfinite(scale) and scale > 0


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=60)
@given(
    hnp.arrays(np.float32, st.integers(1, 30), elements=FLOATS),
    st.sampled_from(NAMES),
    st.sampled_from(SPECS),
)
def test_any_values_give_a_range_within_them(x, name, spec):
    """Whatever float32 holds: subnormal, huge, constant, zeros of both signs, one value."""
    check(gathered(x), name, spec)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_of_nothing_give_the_range_of_nothing(name):
    """No values, no range: the empty interval, which choose_qparams refuses with a reason."""
    for spec in SPECS:
        limits = Calibrator.parse(name)(TensorStatistics(), spec)
        assert limits == (np.inf, -np.inf)
        with pytest.raises(SpecError, match="a range must be finite"):
            choose_qparams(*limits, spec.qtype, spec.symmetric)


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of a call, which other processes do not change."""
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize("qtype", ["int8", "uint8", "float8e4m3fn"])
def test_every_calibrator_is_fast(qtype):
    """8,000 bins, the most that a language model has, take at most six sorts of 400,000 values.

    Each takes a tenth to half a sort alone, the best of three turns counts, and best_error runs the others.
    """
    rng = np.random.default_rng(1)
    x = np.exp2(rng.uniform(-45, 17, 400_000)) * rng.choice([-1, 1], 400_000)
    stats, spec = gathered(x), QuantSpec(qtype=qtype, symmetric=qtype[0] != "u")
    assert 7_900 < stats.bins.size < 8_100
    for name in observing_names():
        method = Calibrator.parse(name)
        turns = [(seconds_of(lambda: np.sort(x)), seconds_of(partial(method, stats, spec))) for _ in range(3)]
        sort, own = map(min, zip(*turns, strict=True))
        assert own < (20 if name == "best_error" else 6) * sort, name
        check(stats, name, spec)


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("mse", "mse", ()),
        ("percentile:99.9", "percentile", (99.9,)),
        ("percentile:100", "percentile", (100.0,)),
        ("moving_average:1e-05", "moving_average", (1e-5,)),
        ("range:-1,0.5", "range", (-1.0, 0.5)),
        ("known:Softmax", "known", ("Softmax",)),
    ],
)
def test_spelling(text, name, parameters):
    """A parsed calibrator is spelled the same, is equal to its spelling, and goes through JSON as text."""
    made = Calibrator.parse(text)
    assert (made.name, made.parameters) == (name, parameters)
    assert str(made) == text and made == text and hash(made) == hash(text) and made != "minmax"
    assert made.model_dump() == text and made.model_dump_json() == f'"{text}"'
    assert Calibrator.model_validate_json(made.model_dump_json()) == made
    assert Calibrator.parse(made) is made


@given(st.floats(50, 100))
def test_numbers_are_spelled_exactly(percent):
    """Any number comes back from the spelling with the same bits."""
    made = Calibrator(name="percentile", parameters=(percent,))
    assert Calibrator.parse(str(made)).parameters == (percent,)


def test_every_form_is_one_that_is_taken():
    """Names in the help are understood, once the example's words are given; the default is one of them."""
    words = {"LOW,HIGH": "-1,0.5", "OP": "Tanh"}
    for form in spellings():
        name, colon, rest = form.partition(":")
        assert Calibrator.parse(f"{name}{colon}{words.get(rest, rest)}").name == name
    assert DEFAULT_CALIBRATOR in spellings()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mze", "unknown calibrator 'mze'; nearest: mse"),
        ("zz", "unknown calibrator 'zz'; known: best_error, entropy, known:OP, minmax, moving_average, mse"),
        ("max", "unknown calibrator 'max': it is called minmax here"),
        ("tf_enhanced", "unknown calibrator 'tf_enhanced': it is called sqnr here"),
        ("histogram", "unknown calibrator 'histogram': it is called entropy, percentile or mse here"),
        ("rnage:0,1", "unknown calibrator 'rnage:0,1'; nearest: range"),
        ("mse:3", "unknown calibrator 'mse:3'; nearest: mse"),
        ("mse:", "unknown calibrator 'mse:'; nearest: mse"),
        ("percentile:", "calibrator 'percentile:': the percentile must be a number from 50 to 100"),
        ("percentile:x", "must be a number from 50 to 100, as in percentile:99.9"),
        ("percentile:49.9", "must be a number from 50 to 100"),
        ("percentile:101", "must be a number from 50 to 100"),
        ("percentile:nan", "must be a number from 50 to 100"),
        ("percentile:99,5", "must be a number from 50 to 100"),
        ("moving_average:0", "must be above 0 and at most 1, as in moving_average:0.1"),
        ("moving_average:1.1", "must be above 0 and at most 1"),
        ("moving_average:x", "must be above 0 and at most 1"),
        ("range", "give two finite numbers, the smaller first, as in range:-1,1"),
        ("range:1", "give two finite numbers"),
        ("range:1,0", "give two finite numbers"),
        ("range:1,1", "give two finite numbers"),
        ("range:0,inf", "give two finite numbers"),
        ("range:0,1e39", "give two finite numbers"),
        (
            "known",
            "outputs of ''; known: Cos, Erf, HardSigmoid, Sigmoid, Sin, Softmax, Softsign, Tanh",
        ),
        ("known:Softmx", "no range is known for outputs of 'Softmx'; nearest: Softmax"),
    ],
)
def test_unknown_names(name, words):
    """A name that is none is refused with the nearest, a percentile with its limits."""
    with pytest.raises(SpecError) as caught:
        Calibrator.parse(name)
    assert words in str(caught.value)

"""Error sums: NumPy in float64 is the authority; they add over batches and survive infinities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.numerics.metrics import ErrorSums, ratio_db

RNG = np.random.default_rng(0)
VALUES = hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(-1e3, 1e3, width=32))


def test_sums_are_numpys():
    """Each sum is what NumPy gives in float64 over all elements of any shape."""
    r = RNG.normal(size=(3, 4, 5)).astype(np.float32)
    c = r + RNG.normal(size=r.shape).astype(np.float32) / 8
    sums = ErrorSums.from_arrays(r, c)
    r64, c64 = r.astype(np.float64), c.astype(np.float64)
    assert sums.elements == 60
    # NumPy sums pairwise, a dot product does not: some units in the last place of 60 terms.
    assert sums.signal == pytest.approx(np.sum(r64**2), rel=1e-14)
    assert sums.noise == pytest.approx(np.sum((r64 - c64) ** 2), rel=1e-14)
    assert sums.power == pytest.approx(np.sum(c64**2), rel=1e-14)
    assert sums.product == pytest.approx(np.sum(r64 * c64), rel=1e-14)
    assert sums.largest == np.abs(r64 - c64).max()


def test_figures_are_the_textbooks():
    """SQNR is 10 log10 of a power ratio; the cosine belongs to the angle."""
    sums = ErrorSums.from_arrays(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert sums.sqnr_db == pytest.approx(20.0, rel=1e-15)  # 25 to 0.25
    assert ErrorSums.from_arrays(np.array([1.0, 0.0]), np.array([1.0, 1.0])).cosine == pytest.approx(
        math.sqrt(0.5)
    )
    assert ErrorSums.from_arrays(np.array([1.0, 0.0]), np.array([0.0, 1.0])).cosine == 0.0


@given(VALUES, VALUES, st.randoms())
def test_batches_add(a, b, random):
    """Sums of parts add to the sums of the whole, so batching does not matter, and nothing is neutral."""
    noisy = [x + np.float32(random.uniform(-1, 1)) for x in (a, b)]
    whole = ErrorSums.from_arrays(np.concatenate([a, b]), np.concatenate(noisy))
    parts = ErrorSums.from_arrays(a, noisy[0]) + ErrorSums.from_arrays(b, noisy[1])
    assert parts.elements == whole.elements
    assert parts.largest == whole.largest
    for field in ("signal", "noise", "power"):
        # All terms are positive: only the order of the additions differs.
        assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=1e-13)
    assert whole + ErrorSums() == whole


def test_equal_arrays_have_no_error():
    """Nothing lost: infinite dB, cosine 1, also for equal infinities and for all zeros."""
    x = np.array([1.0, -2.0, np.inf, -np.inf], np.float32)
    assert (ErrorSums.from_arrays(x, x).noise, ErrorSums.from_arrays(x, x).sqnr_db) == (0.0, math.inf)
    assert ErrorSums.from_arrays(x, x).largest == 0.0
    zeros = ErrorSums.from_arrays(np.zeros(3, np.float32), np.zeros(3, np.float32))
    assert (zeros.cosine, zeros.sqnr_db) == (1.0, math.inf)


@pytest.mark.parametrize(
    ("candidate", "sqnr_db", "largest"),
    [(np.inf, -math.inf, math.inf), (-np.inf, -math.inf, math.inf), (np.nan, -math.inf, math.nan)],
    ids=str,
)
def test_non_finite_candidates_show(candidate, sqnr_db, largest):
    """An infinity or NaN in the candidate reaches the figures, without a warning or an exception."""
    sums = ErrorSums.from_arrays(np.array([1.0, 2.0]), np.array([1.0, candidate]))
    both = ErrorSums.from_arrays(np.ones(1), np.ones(1)) + sums
    for one in (sums, both):
        assert one.sqnr_db == sqnr_db
        assert one.largest == pytest.approx(largest, nan_ok=True)


def test_what_both_have_is_equal():
    """NaN and infinities at the same places have no error; a NaN of the reference alone has."""
    given = np.array([1.0, np.nan, np.inf, 2.0])
    assert ErrorSums.from_arrays(given, given).sqnr_db == math.inf
    near = ErrorSums.from_arrays(given[[0, 1, 3]], np.array([1.0, np.nan, 2.1]))
    assert near.sqnr_db == pytest.approx(10 * np.log10(5 / 0.01)) and near.largest == pytest.approx(0.1)
    assert ErrorSums.from_arrays(given, np.array([1.0, 3.0, np.inf, 2.0])).sqnr_db == -math.inf


def test_a_zero_candidate_has_cosine_zero():
    """One of both is zero: no angle, called 0; the noise is the signal, 0 dB."""
    sums = ErrorSums.from_arrays(np.ones(2), np.zeros(2))
    assert (sums.cosine, sums.sqnr_db) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [
        (1.0, 0.0, math.inf),
        (0.0, 0.0, math.inf),
        (0.0, 1.0, -math.inf),
        (100.0, 1.0, 20.0),
        (1.0, math.inf, -math.inf),
        (1e-300, 1e300, -math.inf),
    ],
)
def test_ratio_db(signal, noise, expected):
    """No noise is inf, no signal -inf, and a ratio too small for float64 counts as no signal."""
    assert ratio_db(signal, noise) == expected

"""Scale and zero point: torch's observers first, then the rules for every range, then the refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loops import loop_over

from onnxfq.errors import SpecError
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.qparams import MIN_SCALE, ParamRules, choose_qparams
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
RANGES = st.tuples(FLOATS, FLOATS).map(sorted)
LARGEST = float(np.finfo(np.float32).max)
SUBNORMAL = float(np.finfo(np.float32).smallest_subnormal)
NARROW = ["int8[-127,127]", "int8[-10,127]", "uint8[0,200]", "int5[-3,15]", "int16[-300,300]"]
TYPES = [*QTYPES.values(), *map(qtype_by_name, NARROW)]
SCHEMES = loop_over(
    ("qtype", "symmetric"), [(q, s) for q in TYPES for s in ({True} if q.is_float else {q.qmin < 0, False})]
)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.parametrize(
    "limits", [(-1.0, 3.0), (0.5, 2.0), (-4.0, -0.5), (-0.7, 0.7), (-1e-3, 250.0)], ids=str
)
@pytest.mark.parametrize("name", ["uint8", "int8"])
def test_asymmetric_is_torchs_affine(name, limits):
    """An asymmetric range gives the numbers of torch's affine observer."""
    torch = pytest.importorskip("torch")
    dtype = {"uint8": torch.quint8, "int8": torch.qint8}[name]
    observer = torch.ao.quantization.MinMaxObserver(dtype=dtype, qscheme=torch.per_tensor_affine)
    observer(torch.tensor(limits))
    scale, zero_point = observer.calculate_qparams()
    qtype = QTYPES[name]
    ours = choose_qparams(*np.asarray(limits, np.float32), qtype, symmetric=False)
    np.testing.assert_array_max_ulp(ours[0], scale.numpy()[0], 1)  # theirs is computed in float32
    assert int(ours[1]) == int(zero_point)


@SCHEMES
@settings(max_examples=25)
@given(limits=RANGES)
def test_rules_for_every_range(qtype, symmetric, limits):
    """Scale finite and positive; zero point in the type; the grid covers the range to half a step."""
    scale, zero_point = choose_qparams(*limits, qtype, symmetric)
    assert (scale.dtype, zero_point.dtype, scale.shape, zero_point.shape) == (np.float32, np.int32, (), ())
    assert np.isfinite(scale) and scale >= MIN_SCALE
    assert qtype.qmin <= zero_point <= qtype.qmax
    if symmetric:
        assert zero_point == 0
    low, high = (float(scale) * (limit - int(zero_point)) for limit in (qtype.qmin, qtype.qmax))
    # Half a step from rounding the zero point; 16 bits of steps lose some 2^-8 to the float32 scale.
    slack = float(scale) * ((0.0 if symmetric else 0.5) + 2.0**-7)
    assert low - slack <= limits[0] and limits[1] <= high + slack
    assert low <= 0.0 <= high, "0 is on the grid: scale * (zero_point - zero_point)"


@SCHEMES
@settings(max_examples=25)
@example(limits=(-0.0, 0.0))
@example(limits=(-SUBNORMAL, SUBNORMAL))
@example(limits=(0.0, MIN_SCALE))
@example(limits=(-LARGEST, LARGEST))
@given(limits=RANGES)
def test_no_finer_than_needed(qtype, symmetric, limits):
    """The steps that the range, 0 included, needs are all used: the scale is not too large.

    A range too narrow for a normal scale gets the stated one. The width of all of float32 overflows float32,
    and the scale does not.
    """
    scale, _ = choose_qparams(*limits, qtype, symmetric)
    low, high = min(limits[0], 0.0), max(limits[1], 0.0)
    wanted = (high - low) / (qtype.qmax - qtype.qmin)
    if symmetric:
        wanted = max(low / qtype.qmin, high / qtype.qmax)
    if wanted > MIN_SCALE:
        assert float(scale) == pytest.approx(wanted, rel=2.0**-24)  # rounding to float32
    else:
        assert float(scale) == (MIN_SCALE if wanted else 1.0)


@SCHEMES
def test_arrays_are_slices(qtype, symmetric):
    """Every element of an array is what it would be alone."""
    rng = np.random.default_rng(0)
    rmin, rmax = np.sort(rng.normal(size=(2, 3, 4)), axis=0)
    rmin[0, 0] = rmax[0, 0] = 0.0
    scale, zero_point = choose_qparams(rmin, rmax, qtype, symmetric)
    assert scale.shape == zero_point.shape == (3, 4)
    for at in np.ndindex(3, 4):
        one = choose_qparams(rmin[at], rmax[at], qtype, symmetric)
        assert (one[0], one[1]) == (scale[at], zero_point[at])


@loop_over(
    ("rmin", "rmax", "words"),
    [
        (np.nan, 1.0, "finite in float32, got [nan, 1]; remove NaN and infinities"),
        (0.0, np.inf, "finite in float32, got [0, inf]"),
        (-1e39, 1.0, "finite in float32, got [-1e+39, 1]"),
        (1.0, -1.0, "must not be inverted, got [1, -1]; give the smaller end first"),
        (np.inf, -np.inf, "finite in float32, got [inf, -inf]"),
        (np.arange(99.0), np.arange(99.0) - (np.arange(99) == 7), "got [7, 6]"),
    ],
)
@SCHEMES
def test_ranges_that_are_none(qtype, symmetric, rmin, rmax, words):
    """A range that is not one is refused in one line with the first bad value."""
    with pytest.raises(SpecError) as caught:
        choose_qparams(rmin, rmax, qtype, symmetric)
    assert words in str(caught.value)


POWERS = ParamRules(power_of_two=True)


@SCHEMES
@settings(max_examples=25)
@given(limits=RANGES)
def test_power_of_two(qtype, symmetric, limits):
    """The scale is the smallest power of two not below the free one; what fitted before still fits."""
    scale, zero_point = choose_qparams(*limits, qtype, symmetric, POWERS)
    free, _ = choose_qparams(*limits, qtype, symmetric)
    fraction, _ = np.frexp(scale)
    assert fraction == 0.5 and scale.dtype == np.float32
    if scale < 2.0**127:  # the largest power of two that float32 has
        assert 0.5 * float(scale) < float(free) * (1 + 2.0**-23)
        assert float(free) <= float(scale) * (1 + 2.0**-23)
        low, high = (float(scale) * (limit - int(zero_point)) for limit in (qtype.qmin, qtype.qmax))
        slack = float(scale) * (0.5 + 2.0**-7)
        assert low - slack <= limits[0] and limits[1] <= high + slack


@pytest.mark.sample
@pytest.mark.parametrize("amax", [127.0, 127.00001, 1.0, 3e-39, 3.4e38], ids=str)
def test_power_of_two_by_hand(amax):
    """127 needs steps of 1; a hair more needs 2."""
    expected = {127.0: 1.0, 127.00001: 2.0, 1.0: 2.0**-6, 3e-39: 2.0**-126, 3.4e38: 2.0**122}[amax]
    assert choose_qparams(-amax, amax, QTYPES["int8"], True, POWERS)[0] == np.float32(expected)


@given(limits=RANGES)
def test_fractional_zero_point(limits):
    """The zero point is not rounded: both ends of the range lie on the grid, and the kernel's rule holds."""
    qtype = QTYPES["uint8"]
    scale, zero_point = choose_qparams(*limits, qtype, False, ParamRules(fractional_zero_point=True))
    assert zero_point.dtype == np.float32 and qtype.qmin <= zero_point <= qtype.qmax
    low, high = (float(scale) * (limit - float(zero_point)) for limit in (qtype.qmin, qtype.qmax))
    slack = float(scale) * 2.0**-12  # float32 holds scale and zero point to 2^-24 of up to 255 steps
    assert low - slack <= min(limits[0], 0.0) and max(limits[1], 0.0) <= high + slack
    fake_quantize(np.float32([0.0]), scale, zero_point, qtype=qtype)


@pytest.mark.parametrize("name", [q.name for q in QTYPES.values() if q.is_float])
@given(amax=st.floats(2.0**-100, 2.0**100, width=32))
def test_floats_reach_their_largest_number(name, amax):
    """The largest value is quantized to the largest finite number: nothing saturates, nothing is unused."""
    qtype = QTYPES[name]
    scale, zero_point = choose_qparams(-amax, amax, qtype, True)
    assert zero_point == 0
    x = np.float32([-amax, amax])
    np.testing.assert_array_equal(
        fake_quantize(x, scale, qtype=qtype), np.float32([-qtype.qmax, qtype.qmax]) * scale
    )

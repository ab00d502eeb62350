"""The seven roundings on integer grids, in words, and whole ranges of values under each."""

from __future__ import annotations

import math

import keyword_numerics as numerics
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout

# name: what it makes of v, in Python floats
WORDS = {
    "half_even": round,
    "half_up": lambda v: math.floor(v + 0.5),
    "half_away": lambda v: math.copysign(math.floor(abs(v) + 0.5), v),
    "half_down": lambda v: math.copysign(math.ceil(abs(v) - 0.5), v),
    "floor": math.floor,
    "ceil": math.ceil,
    "truncate": math.trunc,
}


@pytest.mark.parametrize("rounding", numerics.ROUNDINGS)
def test_roundings_in_words(rng, rounding):
    """Halves, their neighbours and values between, on a grid of step 1: what the name says."""
    halves = np.arange(-260, 260, dtype=np.float32) / 2
    below, above = (np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf))
    x = np.concatenate([halves, below, above, rng.uniform(-130, 130, 5000).astype(np.float32)])
    if rounding == "half_up":
        x = x[np.abs(x) != np.float32(0.49999997)]  # see the next test
    y = numerics.both(x, 1.0, qtype="int8", rounding=rounding)
    assert y.tolist() == [min(max(WORDS[rounding](v), -128), 127) for v in x.tolist()]
    assert not np.signbit(y[y == 0]).any()


def test_half_up_is_floor_of_the_float32_sum():
    """As Horizon defines it: the sum with 0.5 rounds, so the largest float below a half becomes 1."""
    below = np.nextafter(np.float32(0.5), np.float32(0))
    x = np.array([below, -below, 0.5, -0.5], np.float32)
    assert numerics.both(x, 1.0, qtype="int8", rounding="half_up").tolist() == [1, 0, 1, 0]
    for rounding in ("half_away", "half_down", "half_even"):
        assert numerics.both(x[:2], 1.0, qtype="int8", rounding=rounding).tolist() == [0, 0]


@pytest.mark.parametrize("arithmetic", numerics.ARITHMETICS)
@pytest.mark.parametrize("rounding", numerics.ROUNDINGS)
@pytest.mark.parametrize("qtype", ["int2", "uint8", "int16", "float8e4m3fn", "float4e2m1"])
def test_a_million_values(rng, qtype, rounding, arithmetic):
    """Any bits at all, and values near the grid, at ordinary and extreme scales."""
    anything = rng.integers(0, 1 << 32, 150_000, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(50_000).astype(np.float32)
    scales = [0.37, 1e-30, 2.0**-126, 3e38] + ([1e-45] if arithmetic == "divide" else [])
    for scale in scales:
        with np.errstate(over="ignore"):
            x = np.concatenate([anything, near * np.float32(scale) * 3])
        numerics.both(x, scale, qtype=qtype, rounding=rounding, arithmetic=arithmetic)
        if not qtype.startswith("float"):
            numerics.both(x, scale, 0.3, qtype=qtype, rounding=rounding, arithmetic=arithmetic)


@given(
    x=hnp.arrays(np.float32, 20, elements=st.floats(-1e6, 1e6, width=32)),
    zero_point=st.floats(-128, 127, width=32),
    scale=st.floats(2.0**-10, 2.0**10, width=32),
)
def test_fractions_as_zero_point(x, zero_point, scale):
    """The result is (q - zp) * scale, q an integer, within half a step where the grid reaches."""
    y = numerics.both(x, scale, zero_point, qtype="int8").astype(np.float64)
    q = y / scale + zero_point
    assert np.abs(q - np.rint(q)).max() < 1e-3 and (q > -128.01).all() and (q < 127.01).all()
    v = x.astype(np.float64) / scale + zero_point
    inside = (v >= -128) & (v <= 127)
    # Float32 roundings of quotient and sum: each 2^-24 of at most 2 * 256 steps.
    assert (np.abs(y - x)[inside] <= (0.5 + 2**-14) * scale).all()


@pytest.mark.parametrize("zero_point", [0, 7, -100])
def test_mask_of_torch(rng, zero_point):
    """PyTorch passes gradients where x / scale lands inside the grid: where nothing saturates."""
    torch = pytest.importorskip("torch")
    scale = np.float32(0.0371)
    x = (rng.standard_normal(100_000) * 6).astype(np.float32)
    y, mask = torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(
        torch.from_numpy(x), float(scale), zero_point, -128, 127
    )
    actual = numerics.both(x, scale, zero_point, qtype="int8", arithmetic="reciprocal")
    assert np.array_equal(actual, y.numpy())
    wider = numerics.both(x, scale, zero_point, qtype="int16", arithmetic="reciprocal")
    assert np.array_equal(wider == actual, mask.numpy())


@pytest.mark.parametrize(
    ("block_shape", "where"),
    [
        ((1, 12), {"axis": 0}),
        ((8, 1), {"axis": 1}),
        ((-1, 1), {"axis": 1}),
        ((1, 5), {"axis": 1, "block_size": 5}),
        ((3, 1), {"axis": 0, "block_size": 3}),
        ((-1, -1), {}),
    ],
    ids=str,
)
def test_block_shape_is_the_general_case(ops, rng, block_shape, where):
    """Per tensor, per axis and blocked are block shapes: the same scales give the same bits."""
    x = rng.standard_normal((8, 12)).astype(np.float32)
    shape = Layout(Granularity(block_shape=block_shape), x.shape).scale_shape
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero_point = rng.integers(-5, 5, shape)
    by_shape = numerics.both(x, scale, zero_point, qtype="int8", block_shape=block_shape)
    flat = (lambda v: v) if "block_size" in where else (lambda v: v.reshape(-1))
    assert np.array_equal(numerics.both(x, flat(scale), flat(zero_point), qtype="int8", **where), by_shape)
    y = ops.fake_quantize(x, scale, zero_point, qtype="int8", block_shape=block_shape)
    assert np.array_equal(y, by_shape)


@given(data=st.data())
def test_block_shapes_of_any_size(data):
    """Blocks that fit, do not fit, or are larger than x: kernel and NumPy agree, slice by slice too."""
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=7))
    block_shape = data.draw(st.tuples(*(st.integers(1, 9) | st.just(-1) for _ in shape)))
    counts = Layout(Granularity(block_shape=block_shape), shape).scale_shape
    scale = data.draw(hnp.arrays(np.float32, counts, elements=st.floats(2.0**-8, 1, width=32)))
    x = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-300, 300, width=32)))
    y = numerics.both(x, scale, qtype="int8", block_shape=block_shape)
    for index in np.ndindex(*counts):
        at = tuple(
            slice(None) if b == -1 else slice(i * b, (i + 1) * b)
            for i, b in zip(index, block_shape, strict=True)
        )
        assert np.array_equal(numerics.fake_quantize(x[at], scale[index], qtype="int8"), y[at])

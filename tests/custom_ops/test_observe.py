"""Observe against plain NumPy: range, counts and the histogram over the leading bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from onnxfq.runtime import kernels

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def expected_statistics(x: np.ndarray) -> list[np.ndarray]:
    """The four outputs, computed with NumPy."""
    x = x.ravel()
    finite = x[np.isfinite(x)] + np.float32(0)
    bounds = [finite.min(), finite.max()] if finite.size else [np.inf, -np.inf]
    counts = [x.size, np.isnan(x).sum(), np.isinf(x).sum(), (x == 0).sum()]
    bins, bin_counts = np.unique(finite.view(np.uint32) >> 17, return_counts=True)
    return [np.float32(bounds), np.int64(counts), bins.astype(np.int32), bin_counts.astype(np.int64)]


def assert_same(actual, expected):
    """Equal in type, shape and bits."""
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert a.tobytes() == e.tobytes(), f"{a} is not {e}"


def edge_values() -> np.ndarray:
    """Both zeros, subnormals, the largest and smallest floats, infinities and NaN of both signs."""
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    values = [0, -0.0, tiny, -tiny, 1e-39, huge, -huge, np.inf, -np.inf, np.nan, -np.nan, 1, -1, 6, 6, 6]
    return np.array(values, np.float32)


def inputs() -> dict[str, np.ndarray]:
    """Named tensors, each a separate case."""
    rng = np.random.default_rng(3)
    normal = rng.standard_normal(70_007).astype(np.float32)
    return {
        "normal": normal,
        "relu": np.maximum(normal, 0).reshape(73, 7, -1)[:, :-1],
        "edges": edge_values(),
        "bits": rng.integers(0, 2**32, 200_003, dtype=np.uint32).view(np.float32),
        "constant": np.full(100_000, 6, np.float32),
        "zeros": np.zeros(1000, np.float32),
        "negative-zeros": np.full(100, -0.0, np.float32),
        "all-nan": np.full((30, 40), np.nan, np.float32),
        "all-infinite": np.array([np.inf, -np.inf], np.float32),
        "negative": -np.abs(normal) - 1,
        "subnormal": normal * np.float32(1e-40),
        "one": np.array(3.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }


@pytest.mark.parametrize("name", inputs())
def test_observe_matches_numpy(ops, name):
    """Kernel and operator give what NumPy computes, whatever the values; without histogram, no bins."""
    x = inputs()[name]
    expected = expected_statistics(x)
    assert_same(kernels.observe(x), expected)
    assert_same(ops.observe(x), expected)
    without = [*expected[:2], *(part[:0] for part in expected[2:])]
    assert_same(ops.observe(x, histogram=0), without)
    assert_same(kernels.observe(x, histogram=False), without)


@settings(max_examples=150)
@given(x=hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)))
def test_observe_matches_numpy_on_anything(x):
    """Any mixture of floats, of any small size."""
    assert_same(kernels.observe(x), expected_statistics(x))


def test_threads_do_not_change_a_bit(ops):
    """Tasks are merged by integer sums: one thread and two agree."""
    x = np.random.default_rng(5).integers(0, 2**32, 3_000_000, dtype=np.uint32).view(np.float32)
    expected = expected_statistics(x)
    for _ in range(3):
        assert_same(ops.observe(x, threads=1), expected)
        assert_same(ops.observe(x, threads=2), expected)


def test_more_elements_than_a_counter_takes_at_once():
    """Past 2^24 elements the 32-bit counters are emptied on the way: no count is lost."""
    x = np.full((1 << 25) + 5, 2, np.float32)
    x[::4] = -3
    x[7::1024] = np.nan
    assert_same(kernels.observe(x), expected_statistics(x))


def test_two_observers_of_one_session(ops):
    """Nodes of one session share the library's counters without mixing them."""
    kinds = [TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.INT64]
    names = [[f"{part}{i}" for part in "rcbn"] for i in (0, 1)]
    nodes = [
        helper.make_node("Neg", ["x"], ["m"]),
        helper.make_node("Observe", ["x"], names[0], domain="onnxfq"),
        helper.make_node("Observe", ["m"], names[1], domain="onnxfq"),
    ]
    outputs = dict(zip(names[0] + names[1], kinds + kinds, strict=True))
    x = inputs()["normal"]
    results = ops.session(nodes, ["x"], outputs, threads=2).run(None, {"x": x})
    assert_same(results[:4], expected_statistics(x))
    assert_same(results[4:], expected_statistics(-x))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [0, 1, 2047, 2049, 1 << 16])
def test_halves_count_as_their_float32(ops, dtype, size):
    """float16 and bfloat16, every value there is, give the statistics of the same numbers in float32."""
    x = np.arange(1 << 16, dtype=np.uint16)[:size].view(HALVES[dtype])
    assert_same(ops.observe(x, threads=2), expected_statistics(x.astype(np.float32)))


@pytest.mark.parametrize("dtype", HALVES)
def test_blocked_layout_is_float32(ops, dtype):
    """Onnxruntime keeps no 16-bit tensor in blocks of channels; the operator says so."""
    with pytest.raises(Exception, match="channels and channel_block are for x of type float"):
        ops.observe(np.zeros((1, 16, 2), HALVES[dtype]), channels=3, channel_block=16)

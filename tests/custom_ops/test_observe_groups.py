"""Observe by channels and blocks against plain NumPy: each group as a separate tensor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import loop_over

from onnxfq.calibration.statistics import BIN_COUNT, TensorStatistics, empty_state
from onnxfq.calibration.statistics.state import read_states

Found = list[np.ndarray]


def block_sizes(shape: tuple[int, ...], blocks: dict) -> list[int]:
    """How many elements a group has along each dimension."""
    if "block_shape" in blocks:
        return [n if b == -1 else b for n, b in zip(shape, blocks["block_shape"], strict=True)]
    axis = blocks["axis"] % len(shape)
    if "block_size" in blocks:
        return [blocks["block_size"] if d == axis else 1 for d in range(len(shape))]
    return [1 if d == axis else n for d, n in enumerate(shape)]


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """All of them in a row, of which there may be none."""
    return np.concatenate(parts) if parts else np.zeros(0)


def expected_groups(x: np.ndarray, blocks: dict) -> Found:
    """The four outputs: NumPy's statistics of each group, its elements found by their indices."""
    sizes = block_sizes(x.shape, blocks)
    counts = [-(-n // b) if b else 1 for n, b in zip(x.shape, sizes, strict=True)]
    places = [j // b for j, b in zip(np.indices(x.shape), sizes, strict=True)] if x.size else []
    number = np.ravel_multi_index(places, counts) if x.size else np.zeros(x.shape, int)
    groups = [TensorStatistics.from_array(x[number == g]) for g in range(int(np.prod(counts)))]
    return [
        np.array([(one.rmin, one.rmax) for one in groups], np.float32).reshape(-1, 2),
        np.array([(g.elements, g.nans, g.infinities, g.zeros) for g in groups], np.int64).reshape(-1, 4),
        joined([i * BIN_COUNT + g.bins for i, g in enumerate(groups)]).astype(np.int32),
        joined([g.counts for g in groups]).astype(np.int64),
    ]


def assert_same(actual: Found, expected: Found) -> None:
    """Equal in type, shape and bits."""
    for a, e in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        assert a.tobytes() == e.tobytes(), f"{a} is not {e}"


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Normal values, half of them zeros of either sign, with a NaN and infinities here and there."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-20, 4, shape))).astype(np.float32)
    x[rng.random(shape) < 0.3] = 0.0
    x[rng.random(shape) < 0.1] *= -0.0
    for odd in (np.nan, -np.nan, np.inf, -np.inf, 1e-42):
        x[rng.random(shape) < 0.01] = odd
    return x


CASES = {
    "channels": ((2, 5, 7, 3), {"axis": 1}),
    "many channels": ((2, 70, 3, 3), {"axis": 1}),
    "one channel": ((3, 1, 4), {"axis": 1}),
    "channels last": ((40, 33), {"axis": -1}),
    "channels last, long": ((5000, 18), {"axis": 1}),
    "channels first": ((17, 9), {"axis": 0}),
    "long channels": ((2, 3, 5000), {"axis": 1}),
    "blocks": ((4, 50), {"axis": 1, "block_size": 16}),
    "blocks of the first axis": ((50, 4), {"axis": 0, "block_size": 16}),
    "blocks of channels, pooled": ((3, 40, 5, 5), {"block_shape": [-1, 16, -1, -1]}),
    "blocks of features, pooled": ((2, 6, 50), {"block_shape": [-1, -1, 8]}),
    "blocks along two axes": ((2, 6, 10, 9), {"block_shape": [-1, 4, -1, 2]}),
    "tiles": ((2, 3, 8, 9), {"block_shape": [-1, 1, 3, 4]}),
    "the whole": ((3, 4, 5), {"block_shape": [-1, -1, -1]}),
    "each element": ((3, 4), {"block_shape": [1, 1]}),
    "nothing": ((0, 4), {"axis": 1}),
    "no channels": ((4, 0), {"axis": 1}),
    "a vector": ((100,), {"axis": 0, "block_size": 32}),
}


@loop_over("threads", [1, 2])
@loop_over("case", CASES)
def test_groups_match_numpy(ops, case: str, threads: int) -> None:
    """Range, counts and bins of every group, of any layout and however many threads."""
    shape, blocks = CASES[case]
    x = values(shape)
    assert_same(ops.observe(x, threads=threads, **blocks), expected_groups(x, blocks))


@pytest.mark.parametrize("histogram", [True, False], ids=["", "no histogram"])
@pytest.mark.parametrize("case", CASES)
def test_states_of_groups_grow(ops, case: str, histogram: bool) -> None:
    """MergeStatistics adds to each group's state what NumPy says of it, at every call."""
    shape, blocks = CASES[case]
    x = values(shape)
    limits, counts, bins, bin_counts = expected_groups(x, blocks)
    states = np.tile(empty_state(histogram), (len(limits), 1))
    for _ in range(2):
        states = ops.merge_statistics(x, states, **blocks)
    found = read_states([states[:2], states[2:]])
    kept = slice(None) if histogram else slice(0, 0)
    expected = [limits, 2 * counts, bins[kept], 2 * bin_counts[kept]]
    assert_same(found, expected)


@pytest.mark.parametrize("shape", [(8,), (4, 8), (5, 9), (5, 1, 8)])
def test_states_of_other_groups_are_refused(ops, shape: tuple[int, ...]) -> None:
    """One state for each group: the number is named."""
    with pytest.raises(Exception, match=r"MergeStatistics: state must have shape \[5, 8\] or"):
        ops.merge_statistics(np.ones((2, 5), np.float32), np.zeros(shape, np.int64), axis=1)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["channels", "channels last, long", "blocks along two axes"])
def test_halves_count_as_floats(ops, case: str, dtype: type) -> None:
    """16-bit elements are converted row by row, in parts where rows are long."""
    shape, blocks = CASES[case]
    with np.errstate(over="ignore"):
        x = values(shape).astype(dtype)
    assert_same(ops.observe(x, **blocks), expected_groups(x.astype(np.float32), blocks))


def test_without_histogram(ops) -> None:
    """histogram=0 leaves the bins empty and the rest as it is."""
    shape, blocks = CASES["channels"]
    limits, counts, bins, bin_counts = expected_groups(values(shape), blocks)
    found = ops.observe(values(shape), histogram=0, **blocks)
    assert_same(found, [limits, counts, bins[:0], bin_counts[:0]])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_blocks(ops, data: st.DataObject) -> None:
    """Blocks of any size along any axes, short last ones included."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    blocks = {"block_shape": [data.draw(st.sampled_from([-1, 1, 2, 3])) for _ in shape]}
    x = values(shape, data.draw(st.integers(0, 99)))
    assert_same(ops.observe(x, **blocks), expected_groups(x, blocks))


def test_calls_do_not_see_each_other(ops) -> None:
    """Counters come back empty for the next call, also of NaN and infinities."""
    for case in ("channels last, long", "channels", "tiles", "channels last"):
        shape, blocks = CASES[case]
        for seed in (1, 2):
            x = values(shape, seed)
            assert_same(ops.observe(x, **blocks), expected_groups(x, blocks))


@pytest.mark.parametrize("channels", [16, 17, 40, 64])
def test_channels_of_the_blocked_layout(ops, channels: int) -> None:
    """Block and lane make the channel; the padding behind the last one is left out."""
    x = values((2, channels, 5, 3))
    lanes = 16
    padded = np.full((2, -(-channels // lanes) * lanes, 5, 3), np.float32(99))
    padded[:, :channels] = x
    memory = padded.reshape(2, -1, lanes, 5, 3).transpose(0, 1, 3, 4, 2).reshape(padded.shape)
    found = ops.observe(np.ascontiguousarray(memory), axis=1, channels=channels, channel_block=lanes)
    assert_same(found, expected_groups(x, {"axis": 1}))


@loop_over("threads", [1, 2])
@loop_over("histogram", [0, 1])
@loop_over("lanes", [1, 4, 8, 16])
@loop_over("shape", [(2, 16, 5, 3), (3, 17, 7), (1, 40, 60, 60), (2, 64, 1, 1), (0, 5, 3), (2, 3, 0)])
def test_ranges_of_channels_beside_the_whole(ops, shape, lanes: int, histogram: int, threads: int) -> None:
    """In the plain layout and in blocked ones: what each channel alone has, and the whole unchanged."""
    x = values(shape)
    given = {"histogram": histogram, "threads": threads}
    expected = [*ops.observe(x, **given), expected_groups(x, {"axis": 1})[0]]
    if x.size == 0:
        expected[4] = np.tile(np.float32([np.inf, -np.inf]), (shape[1], 1))
    assert_same(ops.observe(x, channel_ranges=1, **given), expected)
    channels, rest = shape[1], shape[2:]
    blocks = -(-channels // lanes)
    padded = np.full((shape[0], blocks * lanes, *rest), np.float32(99))
    padded[:, :channels] = x
    memory = padded.reshape(shape[0], blocks, lanes, int(np.prod(rest))).swapaxes(2, 3).reshape(padded.shape)
    layout = {"channels": channels, "channel_block": lanes}
    assert_same(ops.observe(np.ascontiguousarray(memory), channel_ranges=1, **layout, **given), expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_ranges_of_channels_of_halves(ops, dtype: type) -> None:
    """They equal the statistics of the same numbers in float32."""
    x = values((2, 5, 40, 70)).astype(dtype)
    found, expected = (ops.observe(one, channel_ranges=1) for one in (x, x.astype(np.float32)))
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("shape", "attributes", "text"),
    [
        ((3, 4), {"axis": 2}, "axis 2 is outside x of rank 2"),
        ((3, 4), {"block_size": 2}, "block_size without axis"),
        ((3, 4), {"block_shape": [2]}, "one size for each dimension"),
        ((3, 4), {"block_shape": [0, 2]}, "at least 1"),
        ((3, 4), {"axis": 1, "block_size": 2, "block_shape": [1, 2]}, "both given"),
        ((70000, 1), {"axis": 0}, "x has 70000 groups, 65536 are the most"),
        ((1, 16, 2), {"axis": 2, "channels": 16, "channel_block": 16}, "give axis 1 alone"),
        ((3, 4), {"channel_ranges": 2}, "channel_ranges must be 0 or 1, got 2"),
        ((3, 4), {"channel_ranges": 1, "axis": 1}, "channel_ranges are of x as a whole"),
        ((3,), {"channel_ranges": 1}, "want an x with channels, axis 1"),
        ((1, 32, 2), {"channel_ranges": 1, "channels": 32, "channel_block": 32}, "divides 16, got 32"),
    ],
)
def test_groups_that_are_not_there_are_refused(ops, shape, attributes, text: str) -> None:
    """One line with the operator's name and the rule."""
    with pytest.raises(Exception, match=f"Observe: .*{text}"):
        ops.observe(np.zeros(shape, np.float32), **attributes)

"""Observe by channels and blocks, and states that grow by it, against plain NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
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
    """Range, counts and bins of every group, of any layout and however many threads; bins if asked for."""
    shape, blocks = CASES[case]
    x = values(shape)
    expected = expected_groups(x, blocks)
    assert_same(ops.observe(x, threads=threads, **blocks), expected)
    without = [*expected[:2], *(part[:0] for part in expected[2:])]
    assert_same(ops.observe(x, threads=threads, histogram=0, **blocks), without)


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


@pytest.mark.parametrize("shape", [(8,), (9,), (4, 8), (5, 9), (5, 1, 8), (BIN_COUNT,), (1, 8), ()])
@pytest.mark.parametrize("blocks", [{"axis": 1}, {}], ids=["groups", "whole"])
def test_other_states_are_refused(ops, shape: tuple[int, ...], blocks: dict[str, int]) -> None:
    """One state for each group: the shapes that there are are named."""
    if shape == (8,) and not blocks:
        return
    wanted = r"\[5, 8\]" if blocks else r"\[8\]"
    with pytest.raises(Exception, match=f"MergeStatistics: state must have shape {wanted} or"):
        ops.merge_statistics(np.ones((2, 5), np.float32), np.zeros(shape, np.int64), **blocks)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["channels", "channels last, long", "blocks along two axes"])
def test_halves_count_as_floats(ops, case: str, dtype: type) -> None:
    """16-bit elements are converted row by row, in parts where rows are long; ranges of channels too."""
    shape, blocks = CASES[case]
    with np.errstate(over="ignore"):
        x = values(shape).astype(dtype)
    assert_same(ops.observe(x, **blocks), expected_groups(x.astype(np.float32), blocks))
    found, expected = (ops.observe(one, channel_ranges=1) for one in (x, x.astype(np.float32)))
    assert_same(found, expected)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_blocks(ops, data: st.DataObject) -> None:
    """Blocks of any size along any axes, short last ones included."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    blocks = {"block_shape": [data.draw(st.sampled_from([-1, 1, 2, 3])) for _ in shape]}
    x = values(shape, data.draw(st.integers(0, 99)))
    assert_same(ops.observe(x, **blocks), expected_groups(x, blocks))


def in_blocks(x: np.ndarray, lanes: int) -> np.ndarray:
    """Return `x` as onnxruntime keeps it: blocks of so many channels, the last one padded."""
    channels, rest = x.shape[1], x.shape[2:]
    blocks = -(-channels // lanes)
    padded = np.full((len(x), blocks * lanes, *rest), np.float32(99))
    padded[:, :channels] = x
    memory = padded.reshape(len(x), blocks, lanes, int(np.prod(rest))).swapaxes(2, 3)
    return np.ascontiguousarray(memory.reshape(padded.shape))


@pytest.mark.parametrize("channels", [16, 17, 40, 64])
def test_channels_of_the_blocked_layout(ops, channels: int) -> None:
    """Block and lane make the channel; the padding behind the last one is left out."""
    x = values((2, channels, 5, 3))
    found = ops.observe(in_blocks(x, 16), axis=1, channels=channels, channel_block=16)
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
    layout = {"channels": shape[1], "channel_block": lanes}
    assert_same(ops.observe(in_blocks(x, lanes), channel_ranges=1, **layout, **given), expected)


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


def assert_equal(state: np.ndarray, expected: TensorStatistics) -> None:
    """The state has these numbers and this histogram."""
    found = TensorStatistics.from_state(state)
    for name in ("rmin", "rmax", "elements", "nans", "infinities", "zeros", "bins", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


@settings(max_examples=60)
@given(parts=st.lists(hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32)), max_size=4))
def test_state_is_the_statistics_of_all_parts(ops, parts: list[np.ndarray]) -> None:
    """Whatever came in whatever parts: the state says what NumPy says of all of it."""
    state = empty_state()
    for part in parts:
        state = ops.merge_statistics(part, state)
    everything = np.concatenate([np.zeros(0, np.float32), *parts])
    assert_equal(state, TensorStatistics.from_array(everything))


def test_the_state_given_is_not_changed(ops) -> None:
    """The operator is a function: the caller's array stays what it was."""
    state = empty_state()
    ops.merge_statistics(np.ones(5, np.float32), state)
    np.testing.assert_array_equal(state, empty_state())


def test_state_of_nothing() -> None:
    """The empty state is the identity of merging."""
    assert_equal(empty_state(), TensorStatistics())


def test_float16_counts_as_its_float32_values(ops) -> None:
    """16-bit floats are counted by the value that they have."""
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float16)
    state = ops.merge_statistics(x, empty_state())
    assert_equal(state, TensorStatistics.from_array(x.astype(np.float32)))

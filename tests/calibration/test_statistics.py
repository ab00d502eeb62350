"""Statistics: NumPy says what they are, merging is a monoid, bins hold their values, files are exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from observed_models import case

from onnxfq.calibration.statistics import (
    BIN_COUNT,
    BIN_SHIFT,
    HISTOGRAM,
    KINDS,
    NEGATIVE,
    Kind,
    Observed,
    Statistics,
    TensorStatistics,
    bin_edges,
)
from onnxfq.errors import StatisticsError
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import MergingObserver, ObserveOptions

ANY = hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32))
TINY = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)
EVERY_CLASS = np.float32(
    [0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, TINY, -TINY, 1.0, -1.0, 1.9999, 3e38, LARGEST, -LARGEST, np.pi]
)


def same(one, other):
    """Tell whether two statistics are equal, arrays and dtypes included."""
    scalars = ("rmin", "rmax", "elements", "nans", "infinities", "zeros")
    return all(getattr(one, f) == getattr(other, f) for f in scalars) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in ((one.bins, other.bins), (one.counts, other.counts))
    )


@given(ANY)
def test_counts_and_range_are_numpys(x):
    """Range, counts and the number of values in the histogram are what NumPy counts; NaN and inf stay out."""
    stats = TensorStatistics.from_array(x)
    finite = x[np.isfinite(x)]
    assert (stats.rmin, stats.rmax) == (finite.min(initial=np.inf), finite.max(initial=-np.inf))
    assert (stats.elements, stats.nans, stats.infinities) == (x.size, np.isnan(x).sum(), np.isinf(x).sum())
    assert stats.zeros == np.count_nonzero(x == 0)
    assert stats.counts.sum() == finite.size and (stats.counts > 0).all()
    assert (np.diff(stats.bins) > 0).all()
    assert stats.amax == np.abs(finite).max(initial=0.0)


@given(hnp.arrays(np.uint32, 50))
def test_every_value_lies_in_its_bin(bits):
    """For all float32, the edges of a value's bin enclose it, within 1/64 of it or of the least normal."""
    x = bits.view(np.float32)
    for value in x[np.isfinite(x)].tolist() + EVERY_CLASS.tolist():
        stats = TensorStatistics.from_array(np.float32([value]))
        low, high = bin_edges(stats.bins)
        assert stats.bins.size == 1
        assert low[0] <= value <= high[0] and low[0] < high[0]
        # The last bin ends at infinity, where the next exponent would begin.
        width = min(high[0], 2.0**128) - max(low[0], -(2.0**128))
        assert width <= max(abs(value), TINY) / 64


def test_bins_are_the_leading_bits():
    """Neighbouring bins share an edge, positive and negative ones mirror each other, all are 2^15."""
    assert BIN_COUNT == 2 * NEGATIVE == 1 << (32 - BIN_SHIFT) == 1 << 15
    finite = np.arange(0x7F800000 >> BIN_SHIFT, dtype=np.int32)
    low, high = bin_edges(finite)
    assert low[0] == 0.0 and np.isinf(high[-1])
    np.testing.assert_array_equal(low[1:], high[:-1])
    mirrored = bin_edges(finite + NEGATIVE)
    np.testing.assert_array_equal(mirrored[0], -high)
    np.testing.assert_array_equal(mirrored[1], -low)
    np.testing.assert_array_equal(TensorStatistics.from_array(low.astype(np.float32)).bins, finite)


def test_minus_zero_is_zero():
    """-0 and 0 are one value: one bin, the range without a sign."""
    stats = TensorStatistics.from_array(np.float32([-0.0, 0.0]))
    assert (stats.bins.tolist(), stats.counts.tolist(), stats.zeros) == ([0], [2], 2)
    assert not np.signbit(stats.rmin) and not np.signbit(stats.rmax)


def test_any_layout_gives_the_same():
    """Shape and memory order do not matter."""
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    whole = TensorStatistics.from_array(x)
    assert same(whole, TensorStatistics.from_array(x.transpose(2, 0, 1)))
    assert same(whole, TensorStatistics.from_array(x[::-1, :, ::-1]))
    assert same(whole, TensorStatistics.from_array(x.ravel()))


@given(ANY, ANY, ANY)
def test_merging_is_a_commutative_monoid(a, b, c):
    """Any order, any grouping, and the whole at once give the same bits; nothing is neutral."""
    x, y, z = map(TensorStatistics.from_array, (a, b, c))
    whole = TensorStatistics.from_array(np.concatenate([a, b, c]))
    assert same(x.merge(y).merge(z), whole)
    assert same(x.merge(y.merge(z)), whole)
    assert same(z.merge(x).merge(y), whole)
    assert same(x.merge(TensorStatistics()), x) and same(TensorStatistics().merge(x), x)
    assert same(TensorStatistics.from_array(np.zeros(0, np.float32)), TensorStatistics())


@given(ANY)
def test_cut_edges_stay_inside_the_range(x):
    """Edges cut to the range still hold every bin's values, and reach rmin and rmax exactly."""
    stats = TensorStatistics.from_array(x)
    low, high = stats.edges()
    assert (low <= high).all()
    if low.size:
        assert (low.min(), high.max()) == (stats.rmin, stats.rmax)
    for value in x[np.isfinite(x)]:
        assert ((low <= value) & (value <= high)).any()


def model_statistics(**tensors):
    """Statistics of a model from arrays by name."""
    gathered = {n: TensorStatistics.from_array(np.asarray(x, np.float32)) for n, x in tensors.items()}
    return Statistics("ab" * 32, 5, HISTOGRAM.to_keys(gathered))


@settings(max_examples=20)
@given(
    arrays=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), ANY, max_size=4
    )
)
def test_files_are_exact(tmp_path_factory, arrays):
    """Saved and loaded statistics are equal for any names, no tensors, and tensors without values."""
    path = tmp_path_factory.mktemp("stats") / "s.npz"
    before = model_statistics(**arrays)
    before.save(path)
    after = Statistics.load(path)
    assert (after.model_sha256, after.feeds, set(after.tensors)) == ("ab" * 32, 5, set(before.tensors))
    assert all(same(after[name], before[name]) for name in before.tensors)


def test_equal_statistics_are_equal_files(tmp_path):
    """The order in which tensors were met does not show in the file's arrays."""
    model_statistics(a=[1.0], b=[2.0]).save(tmp_path / "1.npz")
    model_statistics(b=[2.0], a=[1.0]).save(tmp_path / "2.npz")
    with np.load(tmp_path / "1.npz") as one, np.load(tmp_path / "2.npz") as two:
        assert all(np.array_equal(one[name], two[name]) for name in one.files)


def test_models_merge_by_tensor():
    """Merging adds feeds and merges each tensor."""
    merged = model_statistics(a=[1.0], b=[2.0]).merge(model_statistics(b=[4.0], a=[-1.0]))
    assert merged.feeds == 10
    assert (merged["a"].rmin, merged["a"].rmax, merged["b"].rmax) == (-1.0, 1.0, 4.0)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            Statistics("cd" * 32, 1, {}),
            "different models do not merge (abababababab and cdcdcdcdcdcd); observe both",
        ),
        (model_statistics(a=[1.0], c=[1.0]), "only one side has tensor 'b'; observe both"),
    ],
)
def test_what_does_not_merge(other, words):
    """Statistics of other models or tensors are refused with the remedy."""
    with pytest.raises(StatisticsError) as caught:
        model_statistics(a=[1.0], b=[1.0]).merge(other)
    assert words in str(caught.value)


class AmaxSum:
    """The largest magnitude over feeds."""

    bytes = 8

    def __init__(self, observed):
        self.value = 0.0

    def add(self, results, feed):
        """Add the range of a feed."""
        self.value = max(self.value, amax_of(results))

    def result(self):
        """Return the largest."""
        return self.value


def amax_of(results):
    """Return the largest magnitude of a range."""
    return float(np.abs(results[0]).max())


AMAX = Kind(
    name="amax",
    noun="the amax of ",
    outputs=("range",),
    suits=lambda observed: True,
    empty=AmaxSum,
    read=lambda observed, results, feed_ranges: amax_of(results),
    merge=max,
    fingerprint=lambda value: repr(value).encode(),
    pack=lambda items: iter(
        zip(("amax_tensors", "amax"), map(np.asarray, zip(*items, strict=True)), strict=False)
    ),
    unpack=lambda columns: dict(zip(columns["amax_tensors"].tolist(), columns["amax"].tolist(), strict=True)),
    memory=lambda observed: 8,
)


def test_kinds_are_data(monkeypatch, tmp_path):
    """One more entry of KINDS is merged, hashed, written and read without another line."""
    monkeypatch.setitem(KINDS, "amax", AMAX)
    plain = model_statistics(a=[1.0], b=[2.0])
    one, other = (
        replace(plain, values={**plain.values, **AMAX.to_keys({"b": value})}) for value in (2.0, 5.0)
    )
    merged = one.merge(other)
    assert merged.of_kind(AMAX) == {"b": 5.0} and merged.tensors.keys() == {"a", "b"}
    assert merged.sha256 == other.merge(one).sha256 != plain.merge(plain).sha256
    merged.save(tmp_path / "s.npz")
    assert Statistics.load(tmp_path / "s.npz").values["b", "amax"] == 5.0
    with pytest.raises(StatisticsError, match="only one side has the amax of tensor 'b'; observe both"):
        one.merge(plain)


@pytest.mark.parametrize("name", ["conv_relu", "loop"])
def test_kinds_are_gathered(monkeypatch, name):
    """An output of Observe reaches every kind that names it, merged by the model itself too."""
    monkeypatch.setitem(KINDS, "amax", AMAX)
    model, plan, feeds = case(name)
    options = ObserveOptions(threads=1, device="cpu")
    found = collect_statistics(model, plan, feeds, options)
    assert found.of_kind(AMAX) == {tensor: one.amax for tensor, one in found.tensors.items()}
    with MergingObserver(model, plan, options, "cpu") as observer:
        assert observer.run(feeds).sha256 == found.sha256


def test_another_model():
    """Statistics of another model are refused with both hashes and the remedy."""
    model_statistics().check_model("ab" * 32)
    with pytest.raises(StatisticsError, match="abababababab, this one has cdcdcdcdcdcd; observe this model"):
        model_statistics().check_model("cd" * 32)


def test_no_such_tensor():
    """A tensor that was not observed is refused with the nearest names."""
    with pytest.raises(StatisticsError, match="no statistics for tensor 'conv1'.*; nearest: conv2"):
        model_statistics(conv2=[1.0])["conv1"]
    assert "conv2" in model_statistics(conv2=[1.0]) and "conv1" not in model_statistics(conv2=[1.0])


def rewrite(path, **changes):
    """Write the arrays of a statistics file again, some changed, None: left out."""
    with np.load(path) as data:
        arrays = {**data, **changes}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"format": np.asarray("onnxfq.stats/9")}, "its format is onnxfq.stats/9, not", id="format"
        ),
        pytest.param({"bins": None}, "it lacks 'bins'", id="array missing"),
        pytest.param({"totals": np.ones((1, 4), np.int64)}, "do not add up", id="fewer totals"),
        pytest.param({"totals": np.zeros((2, 3), np.int64)}, "wanted is iu", id="totals of three"),
        pytest.param({"range": np.zeros(2)}, "wanted is f", id="range without pairs"),
        pytest.param({"sizes": np.asarray([1, 5])}, "not as long as 'sizes' say", id="sizes"),
        pytest.param({"counts": np.asarray([1, 9])}, "counts of tensor 'b' do not add up", id="counts"),
        pytest.param({"sizes": np.asarray(["x", "y"])}, "", id="sizes of text"),
        pytest.param({"feeds": np.asarray([1, 2])}, "", id="feeds of two"),
    ],
)
def test_damaged_arrays(tmp_path, changes, words):
    """A file whose arrays contradict each other is refused in one line."""
    path = tmp_path / "s.npz"
    model_statistics(a=[1.0], b=[2.0]).save(path)
    rewrite(path, **changes)
    with pytest.raises(StatisticsError) as caught:
        Statistics.load(path)
    assert str(caught.value).startswith(f"{path} is not a statistics file (") and words in str(caught.value)
    assert str(caught.value).endswith("; make it with `onnxfq observe`")


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "bits", "single", "folder"])
def test_damaged_files(tmp_path, kind):
    """A file that is not our archive is refused in one line."""
    path = tmp_path / "s.npz"
    model_statistics(a=np.random.default_rng(0).normal(size=999)).save(path)
    content = bytearray(path.read_bytes())
    if kind == "folder":
        path = tmp_path
    elif kind == "single":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    elif kind == "bits":
        for at in range(60, len(content) - 300, 11):
            content[at] ^= 0x55
        path.write_bytes(content)
    else:
        path.write_bytes({"text": b"hello", "empty": b"", "cut": bytes(content[:-90])}[kind])
    with pytest.raises(StatisticsError, match="is not a statistics file .*; make it with `onnxfq observe`"):
        Statistics.load(path)


def test_no_such_file(tmp_path):
    """A missing file is said so, with the command that makes it."""
    with pytest.raises(StatisticsError, match="no such file: .*; make it with `onnxfq observe`"):
        Statistics.load(tmp_path / "none.npz")


@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e30])
def test_a_whole_histogram_holds_its_octaves_only(spread: float) -> None:
    """It equals the result of all feeds at once, in the memory that the limit of observing counts."""
    rng = np.random.default_rng(0)
    feeds = [(rng.standard_normal(5000) * spread * 2.0**n).astype(np.float32) for n in (0, -6, 6)]
    made, whole = HISTOGRAM.empty(Observed("t")), TensorStatistics.from_array(np.concatenate(feeds))
    for number, feed in enumerate(feeds):
        one = TensorStatistics.from_array(feed)
        totals = np.asarray([one.elements, 0, 0, one.zeros])
        made.add([np.asarray([one.rmin, one.rmax], np.float32), totals, one.bins, one.counts], number)
    assert made.result().fingerprint() == whole.fingerprint()
    assert made.bytes <= HISTOGRAM.memory(Observed("t")) < 8 * BIN_COUNT / 6

"""Feeds: how arrays, folders and iterables become runs, and what is said about what does not fit."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfq.data import DataOptions, Feeds, InputSpec, read_npz
from onnxfq.errors import DataError

F32 = np.dtype(np.float32)
ONLY_FITTED = DataOptions(nonfinite="skip", survey=False)


def spec(*shape, name="x", dtype="float32"):
    """An input; None in shape is an open dimension."""
    return InputSpec(name, np.dtype(dtype), shape)


def counting(*shape, dtype=np.float32):
    """An array of `shape` whose values tell their place."""
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


def cut(tmp_path, inputs, batch=8, **arrays):
    """The feeds that an .npz of `arrays` gives."""
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return list(Feeds(path, tuple(inputs), batch))


def refused(data, *inputs):
    """The one line with which `data` is refused."""
    with pytest.raises(DataError) as caught:
        list(Feeds(data, inputs))
    return str(caught.value)


# How an .npz is cut


@pytest.fixture(scope="module")
def torch():
    """The module torch, imported before the clock of an example runs."""
    return pytest.importorskip("torch")


@settings(max_examples=40)
@given(samples=st.integers(1, 20), batch=st.integers(1, 9))
def test_an_open_batch_is_cut_as_torch_cuts(torch, tmp_path_factory, samples, batch):
    """Samples along an open axis are cut as torch.split does: in order, the last run may be shorter."""
    x = counting(samples, 3)
    runs = cut(tmp_path_factory.mktemp("d"), [spec(None, 3)], batch, x=x)
    expected = torch.split(torch.tensor(x), batch)
    assert len(runs) == len(expected)
    assert all(np.array_equal(run["x"], want.numpy()) for run, want in zip(runs, expected, strict=True))


@pytest.mark.parametrize(
    ("inputs", "arrays", "shapes"),
    [
        pytest.param([spec(1, 3)], {"x": (4, 3)}, [{"x": (1, 3)}] * 4, id="fixed batch of 1"),
        pytest.param([spec(2, 3)], {"x": (4, 3)}, [{"x": (2, 3)}] * 2, id="fixed batch of 2"),
        pytest.param([spec(2, 3)], {"x": (5, 2, 3)}, [{"x": (2, 3)}] * 5, id="one rank more: whole feeds"),
        pytest.param(
            [spec(None, 3)],
            {"x": (5, 2, 3)},
            [{"x": (8, 3)}, {"x": (2, 3)}],
            id="whole feeds of an open batch are cut anew",
        ),
        pytest.param([spec(None, 3)], {"x": (9, 3)}, [{"x": (8, 3)}, {"x": (1, 3)}], id="default batch"),
        pytest.param(
            [spec(None, 3), spec(None, name="t")],
            {"x": (9, 3), "t": (9,)},
            [{"x": (8, 3), "t": (8,)}, {"x": (1, 3), "t": (1,)}],
            id="two open inputs",
        ),
        pytest.param(
            [spec(1, 3), spec(None, 5, name="y")],
            {"x": (4, 3), "y": (4, 5)},
            [{"x": (1, 3), "y": (1, 5)}] * 4,
            id="a fixed batch cuts the open one",
        ),
        pytest.param(
            [spec(4, 3), spec(name="t")],
            {"x": (8, 3), "t": (2,)},
            [{"x": (4, 3), "t": ()}] * 2,
            id="a scalar a run",
        ),
        pytest.param(
            [spec(4, 3), spec(name="t")],
            {"x": (8, 3), "t": ()},
            [{"x": (4, 3), "t": ()}] * 2,
            id="one scalar for all runs",
        ),
        pytest.param(
            [spec(None, 3), spec(2, 2, name="w")],
            {"x": (6, 3), "w": (3, 2, 2)},
            [{"x": (2, 3), "w": (2, 2)}] * 3,
            id="whole feeds cut the open one",
        ),
        pytest.param(
            [spec(4, 3), spec(2, 5, name="w")],
            {"x": (8, 3), "w": (4, 5)},
            [{"x": (4, 3), "w": (2, 5)}] * 2,
            id="two fixed batches",
        ),
        pytest.param([spec(name="t")], {"t": ()}, [{"t": ()}], id="only a scalar: one run"),
        pytest.param([spec(name="t")], {"t": (3,)}, [{"t": ()}] * 3, id="only scalars"),
        pytest.param(
            [InputSpec("x", F32, None)], {"x": (9, 2)}, [{"x": (8, 2)}, {"x": (1, 2)}], id="unknown shape"
        ),
    ],
)
def test_how_arrays_are_cut(tmp_path, inputs, arrays, shapes):
    """The input's rank or one more, fixed or open, several inputs: the runs have these shapes."""
    runs = cut(tmp_path, inputs, **{name: counting(*shape) for name, shape in arrays.items()})
    assert [{name: array.shape for name, array in run.items()} for run in runs] == shapes
    for name, shape in arrays.items():
        if shape:
            together = np.concatenate([np.ravel(run[name]) for run in runs])
            np.testing.assert_array_equal(together, counting(*shape).ravel(), "every value once, in order")


@pytest.mark.parametrize(
    ("inputs", "arrays", "words"),
    [
        ([spec(4, 3)], {"x": (6, 3)}, "the model takes 4 samples a run; give a multiple of 4"),
        ([spec(4, 3)], {"x": (3,)}, "its rank must be 2 or 3"),
        ([spec(None, 3)], {"x": (2, 2, 2, 3)}, "its rank must be 2 or 3"),
        ([spec(0, 3)], {"x": (2, 3)}, "the model takes 0 samples a run"),
        (
            [spec(None, 3), spec(None, name="y")],
            {"x": (4, 3), "y": (5,)},
            "inputs differ in their number of samples (x 4, y 5); give equal ones",
        ),
        (
            [spec(2, 3), spec(name="t")],
            {"x": (4, 3), "t": (3,)},
            "inputs differ in their number of runs (x 2, t 3); give equal ones",
        ),
        (
            [spec(2, 3), spec(None, name="y")],
            {"x": (4, 3), "y": (3,)},
            "input 'y' has 3 samples for 2 runs; give a multiple of 2",
        ),
        ([spec(None, 3)], {"x": (0, 3)}, "data.npz holds no samples; give at least one"),
        ([spec(2, 3)], {"x": (0, 3)}, "data.npz holds no samples"),
    ],
)
def test_arrays_that_cannot_be_cut(tmp_path, inputs, arrays, words):
    """Counts and ranks that do not fit are refused with what would."""
    path = tmp_path / "data.npz"
    np.savez(path, **{name: counting(*shape) for name, shape in arrays.items()})
    assert words in refused(path, *inputs)


# Other sources


def test_a_folder_holds_one_feed_a_file(tmp_path):
    """Files go in the order of their names; other files are left alone."""
    for number in (10, 2, 1):
        np.savez(tmp_path / f"{number:02}.npz", x=np.full((2, 3), number, np.float32))
    (tmp_path / "notes.txt").write_text("no feed")
    feeds = Feeds(str(tmp_path), (spec(None, 3),), batch=0)
    assert [feed["x"][0, 0] for feed in feeds] == [1, 2, 10]
    assert len(list(feeds)) == 3


class Loader:
    """An iterable that starts again each time, as a data loader does."""

    def __iter__(self):
        """Yield two feeds."""
        return iter([{"x": np.zeros(3, np.float32)}, {"x": np.ones(3, np.float32)}])


@pytest.mark.parametrize(
    ("make", "again"),
    [
        pytest.param(lambda: list(Loader()), True, id="list"),
        pytest.param(lambda: tuple(Loader()), True, id="tuple"),
        pytest.param(Loader, True, id="loader"),
        pytest.param(lambda: iter(Loader()), False, id="iterator"),
        pytest.param(lambda: (feed for feed in Loader()), False, id="generator"),
        pytest.param(lambda: map(dict, Loader()), False, id="map"),
    ],
)
def test_iterables(make, again):
    """Any iterable of feeds does; a second pass over a one-shot iterator is refused, with a remedy."""
    feeds = Feeds(make(), (spec(3),))
    assert [feed["x"][0] for feed in feeds] == [0.0, 1.0]
    if again:
        assert len(list(feeds)) == 2
    else:
        with pytest.raises(DataError, match="read only once; give a list, or the function that makes it"):
            list(feeds)


def test_an_iterator_is_read_only_as_far_as_asked():
    """Feeds come one by one: a stream of any length needs no memory, and nothing is taken by looking."""
    taken = []

    def stream():
        for number in range(1000):
            taken.append(number)
            yield {"x": np.zeros(3, np.float32)}

    feeds = Feeds(stream(), (spec(3),))
    assert not taken
    next(iter(feeds))
    assert taken == [0]


def test_lists_of_numbers_are_arrays():
    """A feed's values may be anything NumPy makes an array of."""
    (feed,) = Feeds([{"x": [1.0, 2.0]}], (spec(2),))
    assert feed["x"].dtype == np.float32 and feed["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the data given holds no samples; give at least one"),
        (iter([]), "at least one, and an iterator that nothing has read yet"),
        (["x"], "feed 0 is a str; give a dict {input name: array} for x"),
        (None, "the data given is a NoneType; give a file, a folder, an array"),
        ([{"x": [[1.0], [1.0, 2.0]]}], "input 'x' in feed 0 is not an array (setting an array"),
        ([{"y": np.zeros(3)}], "feed 0 lacks input 'x' (got y); name arrays as the inputs: x"),
        ([{}], "feed 0 lacks input 'x' (got nothing)"),
    ],
)
def test_data_that_is_no_feeds(data, words):
    """Other objects than feeds are refused, with the form of a feed."""
    assert words in refused(data, spec(3))


def test_faults_of_later_feeds_tell_which():
    """The number of the feed stands in the message."""
    good, bad = {"x": np.zeros(3, np.float32)}, {"x": np.zeros(4, np.float32)}
    assert "got float32 [4], the model has [x float32 [3]]: its shape must fit in feed 1" in refused(
        [good, bad], spec(3)
    )
    assert "its rank must be 1 in feed 2" in refused([good, good, {"x": np.float32(1)}], spec(3))


def test_names_in_a_file(tmp_path):
    """A wrong name in an .npz or in a file of a folder is refused with that file's name."""
    np.savez(tmp_path / "a.npz", image=np.zeros((2, 3), np.float32))
    for source in (tmp_path, tmp_path / "a.npz"):
        assert refused(source, spec(None, 3)).startswith(f"{tmp_path / 'a.npz'} lacks input 'x' (got image)")


# Layout and dtype


@pytest.mark.parametrize(
    ("want", "got", "hint"),
    [
        pytest.param(
            (None, 3, 8, 9),
            (2, 8, 9, 3),
            "NHWC, the model wants NCHW; use array.transpose(0, 3, 1, 2)",
            id="nhwc",
        ),
        pytest.param(
            (None, 8, 9, 3),
            (2, 3, 8, 9),
            "NCHW, the model wants NHWC; use array.transpose(0, 2, 3, 1)",
            id="nchw",
        ),
        pytest.param((None, 3, 8, 8), (2, 4, 8, 8), "or arrays of that shape", id="channels"),
        pytest.param((None, 3), (2, 4), "its shape must fit in sample 0", id="rank 2"),
    ],
)
def test_layout(want, got, hint):
    """A transposed layout is recognised, and the transpose named does repair it."""
    message = refused([{"x": counting(*got)}], spec(*want))
    assert message.endswith(hint)
    if "transpose" in hint:
        order = eval(hint.split("transpose")[1])  # our own message
        list(Feeds([{"x": counting(*got).transpose(order)}], (spec(*want),)))


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("float32", "float16"),
        ("int32", "int64"),
        ("int64", "int32"),
        ("uint8", "int64"),
        ("int64", "uint8"),
    ],
)
def test_casts_that_lose_nothing_else_than_digits(given_dtype, wanted, caplog):
    """A float to a float and an integer that fits are cast, with one note; the values are NumPy's."""
    values = np.arange(6).astype(given_dtype)
    data = [{"x": values.astype(wanted)}, {"x": values}, {"x": values}]
    with caplog.at_level(logging.WARNING):
        _, first, second = Feeds(data, (spec(6, dtype=wanted),), options=ONLY_FITTED)
    np.testing.assert_array_equal(first["x"], values.astype(wanted), strict=True)
    assert second["x"].dtype == np.dtype(wanted)
    assert [record.getMessage() for record in caplog.records] == [f"input x: {given_dtype} cast to {wanted}"]


def test_texts_from_a_file(tmp_path):
    """An .npz without pickles holds texts as NumPy's own; ONNX Runtime's are objects."""
    np.savez(tmp_path / "t.npz", x=np.asarray(["a", "bc", "d"]))
    (feed,) = Feeds(tmp_path / "t.npz", (spec(3, dtype="object"),), options=ONLY_FITTED)
    np.testing.assert_array_equal(feed["x"], np.asarray(["a", "bc", "d"], object), strict=True)


def test_the_same_dtype_is_passed_on(caplog):
    """Nothing is copied and nothing noted when the dtype is right; NaN is passed on when it is to be."""
    x = np.float32([1, np.nan, np.inf])
    (feed,) = Feeds([{"x": x}], (spec(3),), options=ONLY_FITTED)
    assert feed["x"] is x and not caplog.records
    (feed,) = Feeds([{"x": x.astype(np.float64)}], (spec(3),), options=ONLY_FITTED)
    np.testing.assert_array_equal(feed["x"], x)


@pytest.mark.parametrize(
    ("values", "wanted", "words"),
    [
        (
            np.zeros(2, np.uint8),
            "float32",
            "x' got uint8 [2], the model has [x float32 [2]]: its dtype must be float32; "
            "give --scale as in training (0.00392 turns 0..255 into 0..1, 1 leaves it), "
            "or scale it and then astype('float32')",
        ),
        (np.zeros(2, np.float32), "int64", "its dtype must be int64; convert with astype('int64')"),
        (np.zeros(2, bool), "float32", "its dtype must be float32"),
        (np.zeros(2, np.int8), "bool", "its dtype must be bool; convert with astype('bool')"),
        (np.array(["a", "b"]), "float32", "its dtype must be float32"),
        (np.array([b"a", b"b"]), "object", "must be str; convert with astype('str')"),
        (np.array([1, None]), "int64", "its dtype must be int64"),
        (np.array([1, 2**31]), "int32", "2147483648 in feed 0 does not fit int32; give values that do"),
        (np.array([1, -1]), "uint64", "-1 in feed 0 does not fit uint64"),
        (np.array([0, 2**64 - 1], np.uint64), "int64", "18446744073709551615 in feed 0"),
        (np.array([1.0, 1e300]), "float32", "1e+300 in feed 0 does not fit float32"),
        (np.float32([1, 1e5]), "float16", "100000.0 in feed 0 does not fit float16"),
    ],
)
def test_dtypes_that_would_change_values(values, wanted, words):
    """A dtype whose cast would change the meaning or a value is refused with the remedy, not cast."""
    assert words in refused([{"x": values}], spec(2, dtype=wanted))


# Files that cannot be read


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("text", "it is not a zip archive"),
        ("empty", "it is not a zip archive"),
        ("cut", "File is not a zip file"),
        ("bits", ""),
        ("pickled", "holds Python objects, which are not loaded; store texts by astype('str')"),
        ("foreign", "'x' in it is not an array"),
    ],
)
def test_files_that_are_no_npz(tmp_path, kind, words):
    """Whatever is wrong with an archive, one line names the file, the fault and numpy.savez."""
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(900, 3)))
    content = bytearray(path.read_bytes())
    if kind == "pickled":
        np.savez(path, x=np.array([{}], object))
    elif kind == "foreign":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", b"raw")
    elif kind == "bits":
        for at in range(100, 5000, 13):
            content[at] ^= 0x3C
        path.write_bytes(content)
    else:
        path.write_bytes({"text": b"hello", "empty": b"", "cut": bytes(content[:2000])}[kind])
    message = refused(path, spec(None, 3))
    assert message.startswith(f"{path} is not a readable .npz (") and words in message
    assert message.endswith("; write it with numpy.savez(path, INPUT=array)")


def test_a_single_array(tmp_path):
    """An .npy has no names: with several inputs the remedy is to save arrays under theirs."""
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    remedy = "name an array for each of x, y: numpy.savez(path, INPUT=array)"
    for data in (tmp_path / "a.npy", np.zeros((3, 3))):
        message = refused(data, spec(None, 3), spec(None, 3, name="y"))
        assert message.endswith(f"is a single array, and the model has 2 inputs; {remedy}")
    with pytest.raises(DataError, match=r"single array; save it by input name: numpy.savez"):
        read_npz(tmp_path / "a.npy")


def test_read_npz(tmp_path):
    """Arrays come back by name."""
    np.savez(tmp_path / "a.npz", labels=np.arange(3))
    assert read_npz(tmp_path / "a.npz")["labels"].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="it is a folder"):
        read_npz(Path(tmp_path))


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (spec(None, 3), "x float32 [?, 3]"),
        (spec(), "x float32 []"),
        (InputSpec("x", F32, None), "x float32 unknown"),
    ],
)
def test_input_text(one, text):
    """Messages spell an input as name, dtype and shape."""
    assert str(one) == text


@pytest.mark.parametrize("form", [list, lambda feeds: feeds[0]])
def test_more_arrays_than_inputs(form, caplog):
    """Extra keys of dictionaries, as tokenizers return them, are left out with a note; files stay strict."""
    feeds = [{"x": np.ones((2, 3), np.float32), "token_type_ids": np.zeros(2), "labels": np.zeros(2)}]
    with caplog.at_level(logging.WARNING, "onnxfq"):
        (feed,) = Feeds(form(feeds), (spec(None, 3),), 2, ONLY_FITTED)
    assert list(feed) == ["x"]
    assert "the data has token_type_ids, labels, which the model does not take" in caplog.text

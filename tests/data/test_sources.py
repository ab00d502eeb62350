"""Sources: whatever form the same samples come in, feeds and statistics are the same to the bit."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader

from onnxfq.data import Feeds, InputSpec
from onnxfq.errors import DataError

X = np.random.default_rng(7).normal(size=(16, 3, 6, 6)).astype(np.float32)
INPUT = InputSpec("x", np.dtype(np.float32), (None, 3, 6, 6))
MODULE = """
import numpy as np
x = np.load("all.npy")
def feeds():
    for start in range(0, 16, 5):
        yield {"x": x[start : start + 5]}
everything = [{"x": x}]
def needs(count):
    return everything
def nothing():
    return None
"""


class Reader(CalibrationDataReader):
    """A reader as onnxruntime's calibrators take it, which can begin again."""

    def __init__(self) -> None:
        self.left = iter(X)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return one sample, None at the end."""
        sample = next(self.left, None)
        return None if sample is None else {"x": sample[np.newaxis]}

    def rewind(self) -> None:
        """Begin again."""
        self.left = iter(X)


class OnceReader(Reader):
    """A reader that cannot begin again."""

    rewind = None


def loader(parts: str):
    """A torch DataLoader of batches of 3 that yields what `parts` says."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    x, labels = torch.from_numpy(X), torch.arange(16)
    sets = {"tensors": x, "pairs": TensorDataset(x, labels), "dicts": [{"x": sample} for sample in x]}
    return DataLoader(sets[parts], batch_size=3)


def file(name: str, write: Callable[[Path], object]) -> str:
    """Write a file in the current folder; return its name."""
    write(Path(name))
    return name


def folder(suffix: str, size: int) -> str:
    """Write a folder with `size` samples a file; a single one without the axis of the batch."""
    Path("parts").mkdir()
    for start in range(0, 16, size):
        part = X[start] if size == 1 else X[start : start + size]
        path = f"parts/{start:02}.{suffix}"
        np.save(path, part) if suffix == "npy" else np.savez(path, x=part)
    return "parts"


SOURCES = {
    # How the data is made, and how many samples it tells beforehand.
    "list of feeds": (lambda: [{"x": X[:1]}, {"x": X[1:9]}, {"x": X[9:]}], 16),
    "tuple of feeds": (lambda: ({"x": X[:1]}, {"x": X[1:]}), 16),
    "list of samples": (lambda: list(X), 16),
    "list of sample dicts": (lambda: [{"x": sample} for sample in X], 16),
    "generator": (lambda: ({"x": X[i : i + 2]} for i in range(0, 16, 2)), None),
    "function": (lambda: lambda: ({"x": sample} for sample in X), None),
    "function that returns a list": (lambda: lambda: [{"x": X}], None),
    "array": (lambda: X, 16),
    "array of runs": (lambda: X.reshape(4, 4, 3, 6, 6), 16),
    "arrays by name": (lambda: {"x": X}, 16),
    "torch tensor": (lambda: pytest.importorskip("torch").from_numpy(X).requires_grad_(), 16),
    "loader of tensors": (lambda: loader("tensors"), 16),
    "loader of pairs": (lambda: loader("pairs"), 16),
    "loader of dicts": (lambda: loader("dicts"), 16),
    "npz": (lambda: file("all.npz", lambda path: np.savez(path, x=X)), 16),
    "npy": (lambda: Path(file("all.npy", lambda path: np.save(path, X))), 16),
    "folder of npz": (lambda: folder("npz", 5), None),
    "folder of npy": (lambda: folder("npy", 7), None),
    "folder of npy samples": (lambda: folder("npy", 1), None),
    "reader": (Reader, None),
    "reader class": (lambda: Reader, None),
    "module:function": (lambda: file("all.npy", lambda path: np.save(path, X)) and "own:feeds", None),
    "module:list": (lambda: file("all.npy", lambda path: np.save(path, X)) and "own:everything", None),
}
ONCE = {"generator"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a module, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("own.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "own", raising=False)
    yield tmp_path
    sys.modules.pop("own", None)


def sha256(feeds: Feeds) -> str:
    """Hash the feeds as they come: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for feed in feeds:
        for name, array in feed.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("source", SOURCES)
def test_one_hash_for_all_sources(source: str) -> None:
    """The same 16 samples give the same feeds from every source, as often as they are asked for."""
    make, total = SOURCES[source]
    feeds = Feeds(make(), (INPUT,), 4)
    expected = sha256(Feeds([{"x": X[start : start + 4]} for start in range(0, 16, 4)], (INPUT,), 0))
    assert feeds.total == total
    assert sha256(feeds) == expected
    if source not in ONCE:
        assert sha256(feeds) == expected
    assert feeds.digest is not None and feeds.digest.samples == 16


def test_samples_of_a_maker_that_reuses_its_memory() -> None:
    """A generator that fills one buffer again and again gives its samples as they were."""

    def reusing():
        buffer = np.empty((1, 3, 6, 6), np.float32)
        for sample in X:
            buffer[0] = sample
            yield {"x": buffer}

    kept = list(Feeds(reusing, (INPUT,), 4)) + list(Feeds(reusing, (INPUT,), 1))
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in kept]), np.concatenate([X, X]))


def test_a_loader_begins_when_it_is_read() -> None:
    """Asking for the total neither reads nor calls anything."""
    calls = []

    class Lazy:
        def __len__(self) -> int:
            return 16

        def __iter__(self):
            calls.append("iter")
            return iter([{"x": X}])

    feeds = Feeds(Lazy(), (INPUT,))
    assert feeds.total is None and not calls
    called = Feeds(lambda: calls.append("call"), (INPUT,))
    assert called.total is None and not calls
    list(feeds)
    assert calls == ["iter"]


def test_totals_of_loaders() -> None:
    """The total of a torch loader is the length of its sampler, in whole batches if it drops the rest."""
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader, SubsetRandomSampler

    sampled = DataLoader(X, batch_size=4, sampler=SubsetRandomSampler(range(10)))
    whole = DataLoader(X, batch_size=5, drop_last=True)
    for data in (sampled, whole):
        feeds = Feeds(data, (INPUT,), 8)
        assert feeds.total == sum(feed["x"].shape[0] for feed in feeds)


def test_parts_after_the_inputs_are_left_out_with_one_note(caplog: pytest.LogCaptureFixture) -> None:
    """Labels that a loader gives after the inputs are dropped, with one note; too few parts are refused."""
    pairs = [(sample, np.int64(0)) for sample in X] * 2
    assert len(list(Feeds(pairs, (INPUT,), 8))) == 4
    notes = [record.getMessage() for record in caplog.records if "parts" in record.getMessage()]
    assert notes == [
        "an element of the data has 2 parts, the model 1 inputs; the parts after 'x' are left out"
    ]
    second = InputSpec("y", np.dtype(np.int64), (None,))
    with pytest.raises(DataError, match="feed 0 is a tuple of 1, the model has 2 inputs; give x, y, in this"):
        list(Feeds([(X,)], (INPUT, second)))
    both = list(Feeds([(X, np.arange(16))], (INPUT, second), 8))
    assert [feed["y"].tolist() for feed in both] == [list(range(8)), list(range(8, 16))]


def test_parts_that_do_not_fit_are_no_labels() -> None:
    """When the first part does not fit, that is what is said."""
    with pytest.raises(DataError, match=r"input 'x' got int64 \[16\]"):
        list(Feeds([(np.arange(16), X)], (INPUT,)))


REFUSED = {
    "an iterator twice": (lambda: iter([{"x": X}]), "the data given is a list_iterator, which can be read"),
    "a reader twice": (OnceReader, "the OnceReader given has been read and has no rewind(); give it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_second_pass_over_what_has_one(case: str) -> None:
    """Data that can be read once says so at a second pass, with the remedy."""
    make, words = REFUSED[case]
    feeds = Feeds(make(), (INPUT,), 8)
    assert len(list(feeds)) == 2
    with pytest.raises(DataError) as caught:
        list(feeds)
    assert str(caught.value).startswith(words) and "the function that makes it" in str(caught.value)


MISTAKES = {
    "broken module": (
        "broken:feeds",
        "cannot import 'broken' of --data broken:feeds (ZeroDivisionError: div",
    ),
    "missing name": ("own:feed", "module 'own' has no 'feed'; nearest: feeds"),
    "a function with arguments": ("own:needs", "own:needs cannot be called without arguments (missing a"),
    "a function of nothing": ("own:nothing", "the data given is a NoneType; give a file, a folder, an array"),
    "a function of a function": (
        lambda: lambda: X,
        "the data given returns a function; return a file, a folder",
    ),
    "arrays for two inputs": ([X], "feed 0 is a ndarray; give a dict {input name: array} for x, y"),
    "an array without axes": (
        np.float32(3),
        "input 'x' got float32 [], the model has [x float32 [?, 3, 6, 6]",
    ),
    "a number": (3, "the data given is a int; give a file, a folder, an array"),
    "mixed folder": ("mixed", "folder mixed holds 1 .npz and 1 image files; give a folder with one kind"),
    "text as npy": ("text.npy", "text.npy is not a readable .npy (it does not begin as an .npy); write"),
    "a function that fails": (
        "failing:at_once",
        "--data failing:at_once failed (ValueError: two lines) in line 2",
    ),
    "a function that exits": ("failing:exits", "--data failing:exits failed (SystemExit: 0) in line 7 of "),
    "a generator that fails": ("failing:later", "--data failing:later failed (KeyError: 'y') in line 5 of "),
    "half an npy": ("half.npy", "half.npy is not a readable .npy ("),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_is_no_data(case: str) -> None:
    """One line tells what came, what is wanted and what to do."""
    np.save("all.npy", X)
    Path("broken.py").write_text("1 / 0", encoding="utf-8")
    Path("failing.py").write_text(
        "def at_once():\n    raise ValueError('two\\nlines')\n"
        "def later():\n    yield {'x': __import__('numpy').load('all.npy')}\n    {}['y']\n"
        "def exits():\n    raise SystemExit(0)\n"
    )
    Path("mixed").mkdir()
    np.savez("mixed/a.npz", x=X)
    Path("mixed/a.png").write_bytes(b"")
    Path("text.npy").write_text("hello", encoding="utf-8")
    Path("half.npy").write_bytes(Path("all.npy").read_bytes()[:300])
    data, words = MISTAKES[case]
    two = (INPUT, InputSpec("y", np.dtype(np.float32), (None,)))
    with pytest.raises(DataError) as caught:
        list(Feeds(data, two if "two" in case else (INPUT,)))
    assert str(caught.value).startswith(words)


def test_a_file_whose_name_has_a_colon() -> None:
    """A path that exists is a path."""
    np.savez("own:feeds", x=X)
    Path("own:feeds.npz").rename("own:feeds")
    assert len(list(Feeds("own:feeds", (INPUT,), 8))) == 2


def test_folders_of_folders() -> None:
    """Files of subfolders serve when the folder has none itself; hidden ones never do."""
    for name in (".cache/3.npz", "b/1.npz", "a/2.npz", "a/.hidden.npz"):
        Path("set", name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(Path("set", name), x=X[: 2 if name.startswith("a") else 1])
    assert [feed["x"].shape[0] for feed in Feeds("set", (INPUT,), 0)] == [2, 1]
    np.savez("set/top.npz", x=X)
    assert [feed["x"].shape[0] for feed in Feeds("set", (INPUT,), 0)] == [16]


def test_a_large_npy_is_read_sample_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """An .npy above a size is mapped: what is not asked for is not read, and values are the same."""
    monkeypatch.setattr("onnxfq.data.arrays._LATER_FROM", 100)
    np.save("all.npy", X)
    feeds = list(Feeds("all.npy", (INPUT,)))
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in feeds]), X)
    assert type(feeds[0]["x"]) is np.ndarray


def test_fixed_batches_are_cut_from_any_multiple() -> None:
    """A model that takes 2 samples a run gets runs of 2 from feeds of 2, 4 or 16; of 3 they are refused."""
    fixed = (InputSpec("x", np.dtype(np.float32), (2, 3, 6, 6)),)
    for data in (
        X,
        [{"x": X}],
        [X[:2], X[2:6], X[6:]],
        lambda: ({"x": X[i : i + 4]} for i in range(0, 16, 4)),
    ):
        runs = [feed["x"] for feed in Feeds(data, fixed)]
        assert [run.shape[0] for run in runs] == [2] * 8
        np.testing.assert_array_equal(np.concatenate(runs), X)
    with pytest.raises(DataError, match="the model takes 2 samples a run; give a multiple of 2 in feed 1"):
        list(Feeds([{"x": X[:2]}, {"x": X[:3]}], fixed))


def test_tensors_on_a_device_are_fetched() -> None:
    """A tensor that has a gradient and lies elsewhere, and so is not an array yet, is detached and copied."""

    class Remote:
        def __init__(self, values: np.ndarray, state: tuple[str, ...] = ()) -> None:
            self.values, self.state = values, state

        def detach(self):
            return Remote(self.values, (*self.state, "detached"))

        def cpu(self):
            return Remote(self.values, (*self.state, "here"))

        def __array__(self, dtype=None, copy=None) -> np.ndarray:
            if self.state != ("detached", "here"):
                raise TypeError("it lies elsewhere")
            return self.values

    feeds = list(Feeds([Remote(X[:8]), (Remote(X[8:]), "label")], (INPUT,)))
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in feeds]), X)


def test_dlpack_alone_serves() -> None:
    """An array of a library that knows DLPack only is read."""

    class Foreign:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __dlpack__(self, **how):
            return self.values.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

    for data in (Foreign(X), [Foreign(X)]):
        assert sha256(Feeds(data, (INPUT,), 16)) == sha256(Feeds(X, (INPUT,), 16))


def test_a_folder_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subfolder that vanishes is an error of one line."""
    (tmp_path / "gone").mkdir()
    list_folder = os.scandir

    def vanish_and_list(path: str) -> Iterator[os.DirEntry[str]]:
        if os.path.basename(path) == "gone":
            os.rmdir(path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", vanish_and_list)
    with pytest.raises(DataError, match="cannot read .*gone: No such file"):
        list(Feeds(tmp_path, (INPUT,), 4))

"""Files: whole or not at all, with the rights of any new file, and archives read with every fault."""

from __future__ import annotations

import os
import stat
import zipfile

import numpy as np
import pytest

from onnxfq.errors import OutputError
from onnxfq.files import UNREADABLE, check_writable, load_npz, replacing, write_text


def test_text_is_written_as_utf8(tmp_path):
    """What is written is read back, byte for byte, whatever the locale."""
    write_text(tmp_path / "a.txt", "ü\n")
    assert (tmp_path / "a.txt").read_bytes() == "ü\n".encode()


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    """A failure in the middle keeps the former content and leaves no temporary file behind."""
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="midway"), replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("midway")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_leaves_nothing(tmp_path):
    """Ctrl-C is no Exception, and cleans up as well."""
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_the_temporary_file_is_a_neighbour_with_the_same_suffix(tmp_path):
    """A rename is whole only within one folder, and writers go by the suffix."""
    with replacing(tmp_path / "a.npz") as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".npz"
        assert not (tmp_path / "a.npz").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002], ids=oct)
def test_rights_are_those_of_any_new_file(tmp_path, mask):
    """The result gets 0666 less the umask, as open() gives, not the private rights of a temporary file."""
    before = os.umask(mask)
    try:
        write_text(tmp_path / "ours", "")
        (tmp_path / "plain").open("w").close()
        assert os.umask(mask) == mask, "the umask is left as it was"
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")}
    assert modes == {0o666 & ~mask}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        pytest.param("missing/a", "folder {tmp}/missing does not exist; create it first", id="no folder"),
        pytest.param("folder", "{tmp}/folder: it is a folder; give a file name", id="a folder"),
        pytest.param("file/a", "folder {tmp}/file does not exist", id="a file as folder"),
        pytest.param("x" * 300, "File name too long; choose another place", id="name too long"),
    ],
)
def test_places_that_cannot_be_written(tmp_path, where, words):
    """Each impossible place is refused in one line that names it and the remedy."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputError) as caught:
        write_text(tmp_path / where, "x")
    assert words.format(tmp=tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """A folder that may not be written is refused before any work."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, as in containers, may write anywhere
    with pytest.raises(OutputError, match="no permission to write in .*; choose another folder"):
        check_writable(tmp_path / "a")


def test_a_full_disk(tmp_path):
    """What the system refuses while writing is one line too, and leaves nothing."""
    with (
        pytest.raises(OutputError, match="cannot write .*: No space left on device"),
        replacing(tmp_path / "a"),
    ):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_load_npz_gives_what_numpy_saved(tmp_path):
    """Names, dtypes and values come back as numpy.savez stored them."""
    arrays = {"x": np.arange(3, dtype=np.float32), "a/b": np.array(5)}
    np.savez(tmp_path / "a.npz", **arrays)
    loaded = load_npz(tmp_path / "a.npz")
    assert set(loaded) == set(arrays)
    assert all(loaded[n].dtype == v.dtype and np.array_equal(loaded[n], v) for n, v in arrays.items())


def damaged(folder, kind):
    """A file that is not a sound .npz, by kind of damage."""
    path = folder / f"{kind}.npz"
    values = np.random.default_rng(0).normal(size=4000)
    np.savez_compressed(path, x=values)
    content = bytearray(path.read_bytes())
    if kind == "text":
        path.write_text("hello, not an archive")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "bits":
        for at in range(200, 2000, 7):
            content[at] ^= 0xFF
        path.write_bytes(content)
    elif kind == "pickled":
        np.savez(path, x=np.array([{"a": 1}], object))
    elif kind == "single":
        with path.open("wb") as stream:
            np.save(stream, values)
    elif kind == "foreign":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", b"raw bytes")
    elif kind == "encrypted":
        content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the central directory
        path.write_bytes(content)
    return path


DAMAGES = ["text", "empty", "cut", "bits", "pickled", "single", "foreign", "encrypted"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_load_npz_raises_only_what_it_says(tmp_path, kind):
    """Callers turn UNREADABLE into one line: nothing else may come out of a damaged archive."""
    with pytest.raises(UNREADABLE):
        load_npz(damaged(tmp_path, kind))

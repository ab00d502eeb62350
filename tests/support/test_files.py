"""Files: whole or not at all, with the rights of any new file, and archives read with every fault."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from onnxfq.errors import OutputError
from onnxfq.support import temporary
from onnxfq.support.arrays import UNREADABLE, load_npz
from onnxfq.support.files import check_writable, make_folder, replace_file, replace_folder, write_text
from onnxfq.support.outputs import write_together
from onnxfq.support.temporary import room_for_scratch, scratch_folder


@pytest.fixture(params=[True, False], ids=["unnamed", "named"])
def unnamed(request, tmp_path, monkeypatch):
    """Whether temporary files have no name, as on most of Linux, or one next to the file, as elsewhere."""
    if not request.param:
        monkeypatch.setattr(temporary, "open_unnamed", lambda folder: None)
    elif (handle := temporary.open_unnamed(tmp_path)) is None:
        pytest.skip("this file system has no files without a name")
    else:
        os.close(handle)
    return request.param


def test_text_is_written_as_utf8(tmp_path):
    """Written text is read back, byte for byte, whatever the locale."""
    write_text(tmp_path / "a.txt", "ü\n")
    assert (tmp_path / "a.txt").read_bytes() == "ü\n".encode()


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    """A failure in the middle keeps the former content and leaves no temporary file behind."""
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="midway"), replace_file(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("midway")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_leaves_nothing(tmp_path):
    """Ctrl-C is not an Exception, and cleans up as well."""
    with pytest.raises(KeyboardInterrupt), replace_file(tmp_path / "a"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_nothing_is_seen_before_it_is_whole(tmp_path, unnamed):
    """While it is written, the folder has no file of that name, and where the system can, none at all."""
    with replace_file(tmp_path / "a.npz") as temporary:
        temporary.write_bytes(b"half")
        assert len(list(tmp_path.iterdir())) == (0 if unnamed else 1)
        assert not (tmp_path / "a.npz").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert (tmp_path / "a.npz").read_bytes() == b"half"


def test_a_file_is_replaced_whole(tmp_path, unnamed):
    """A reader that has the old file open keeps it; the new one has the name."""
    (tmp_path / "a").write_bytes(b"old")
    with (tmp_path / "a").open("rb") as reader:
        with replace_file(tmp_path / "a") as temporary:
            temporary.write_bytes(b"new")
        assert reader.read() == b"old"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: os.symlink(os.devnull, path)], ids=["pipe", "device"]
)
def test_what_is_no_file_is_left_alone(tmp_path, make):
    """Renaming a file onto a device, as /dev/null, would end the device."""
    make(tmp_path / "a")
    with pytest.raises(OutputError, match="it is a device or a pipe; give the name of a file"):
        write_text(tmp_path / "a", "text")
    assert not (tmp_path / "a").is_file()


def test_a_link_stays(tmp_path, unnamed):
    """The file that a link leads to is replaced, be it there or not; a folder that is missing is made."""
    (tmp_path / "far").mkdir()
    (tmp_path / "a").symlink_to("far/b")
    for text in ("new", "newer"):
        write_text(tmp_path / "a", text)
        assert (tmp_path / "a").is_symlink() and (tmp_path / "far" / "b").read_text() == text
    assert [p.name for p in (tmp_path / "far").iterdir()] == ["b"]
    (tmp_path / "c").symlink_to("nowhere/b")
    write_text(tmp_path / "c", "text")
    assert (tmp_path / "c").is_symlink() and (tmp_path / "nowhere" / "b").read_text() == "text"


def test_a_full_disk_for_temporary_files():
    """The place is named, and how to choose another one; other faults are what they are."""
    with pytest.raises(
        OutputError, match="cannot write temporary files in .*; make room there, or name another"
    ):
        with room_for_scratch():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError), room_for_scratch():
        raise PermissionError(errno.EACCES, "no")


WRITER = """
import sys, time
from pathlib import Path
from onnxfq.support import temporary
from onnxfq.support.files import replace_file
if sys.argv[2] == "named":
    temporary.open_unnamed = lambda folder: None
with replace_file(Path(sys.argv[1]) / "a") as half, temporary.scratch_folder() as folder:
    half.write_bytes(b"half")
    (folder / "half").write_bytes(b"half")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files without a name are of Linux")
@pytest.mark.parametrize("kind", ["unnamed", "named"])
def test_what_a_killed_process_leaves(tmp_path, monkeypatch, kind):
    """Nothing next to the output if files need no name; else, as its folder, gone with the next run.

    Files of a living process are left alone.
    """
    place, out = tmp_path / "tmp", tmp_path / "out"
    place.mkdir()
    out.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", WRITER, str(out), kind]
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)
    ]
    try:
        folders = [Path(writer.stdout.readline().strip()) for writer in writers]
        writers[0].kill()
        writers[0].wait()
        assert len(list(out.iterdir())) == (0 if kind == "unnamed" else 2)
        monkeypatch.setattr("tempfile.tempdir", str(place))
        if kind == "named":
            monkeypatch.setattr(temporary, "open_unnamed", lambda folder: None)
        with scratch_folder():
            write_text(out / "a", "whole")
        assert (out / "a").read_text() == "whole"
        assert len(list(out.iterdir())) == (1 if kind == "unnamed" else 2)
        assert list(place.glob("onnxfq-*")) == [folders[1]] and (folders[1] / "half").exists()
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


KILLED = """
import os, signal, sys
from importlib import import_module
module, name, when = sys.argv[1:]
place = import_module(module)
function = getattr(place, name)
def die(*given, **named):
    if when == "after":
        function(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
from onnxfq.support import temporary
with temporary.scratch_folder() as folder:
    for number in range(2):
        (folder / f"folder{number}").mkdir()
        (folder / f"file{number}").touch()
    if name in ("rmdir", "unlink"):
        setattr(place, name, die)
setattr(place, name, die)
with temporary.scratch_folder() as folder:
    (folder / "file").touch()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no locks, so nothing is removed")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "name", ["tempfile.mkdtemp", "onnxfq.support.temporary._lock", "shutil.rmtree", "os.unlink", "os.rmdir"]
)
def test_a_folder_goes_wherever_its_process_is_killed(tmp_path, monkeypatch, name, when):
    """While it is made, locked, used, emptied and removed: the next run leaves no folder of another."""
    words = [sys.executable, "-c", KILLED, *name.rpartition(".")[::2], when]
    run = subprocess.run(words, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder():
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no locks, so nothing is removed")
def test_what_others_have_among_the_temporary_files_stays(tmp_path, monkeypatch):
    """A folder with another name, of another user, or that a living process has; a file; a link."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stays = ("onnxfq-mine", "onnxfq-mine.part", "onnxfq-theirs00.part", "onnxfq-held0000.part")
    for name in (*stays, "onnxfq-dead0000.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").touch()
    (tmp_path / "onnxfq-file0000.part").touch()
    (tmp_path / "onnxfq-link0000.part").symlink_to(tmp_path / "onnxfq-mine")
    lstat = Path.lstat

    def foreign(path):
        status = list(lstat(path))
        status[stat.ST_UID] += path.name == "onnxfq-theirs00.part"
        return os.stat_result(status)

    monkeypatch.setattr(Path, "lstat", foreign)
    held = os.open(tmp_path / "onnxfq-held0000.part", os.O_RDONLY)
    try:
        temporary.fcntl.flock(held, temporary.fcntl.LOCK_EX)
        with scratch_folder():
            left = {path.name for path in tmp_path.iterdir()}
    finally:
        os.close(held)
    assert {*stays, "onnxfq-file0000.part", "onnxfq-link0000.part"} < left
    assert "onnxfq-dead0000.part" not in left
    assert all((tmp_path / name / "thesis.txt").exists() for name in stays)


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
        pytest.param("folder", "{tmp}/folder: it is a folder; give a file name", id="a folder"),
        pytest.param("file/a", "{tmp}/file is a file; choose another place", id="a file as folder"),
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
    assert sorted(tmp_path.iterdir()) == before


def test_missing_folders_are_made(tmp_path: Path) -> None:
    """A file and a folder bring the folders above them, which go again if nothing comes of them."""
    write_text(tmp_path / "a/b/c.txt", "x")
    assert (tmp_path / "a/b/c.txt").read_text() == "x"
    with replace_folder(tmp_path / "d/e") as made:
        (made / "f").touch()
    assert (tmp_path / "d/e/f").exists()
    for writing in (replace_file, replace_folder, make_folder):
        with pytest.raises(RuntimeError), writing(tmp_path / "g/h/i"):
            raise RuntimeError
        assert not (tmp_path / "g").exists(), writing
    with pytest.raises(RuntimeError), write_together([tmp_path / "k/l"]):
        write_text(tmp_path / "k/l", "x")
        raise RuntimeError
    assert not (tmp_path / "k").exists()


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """A folder that may not be written is refused before any work."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, as in containers, may write anywhere
    with pytest.raises(OutputError, match="no permission to write in .*; choose another folder"):
        check_writable(tmp_path / "a")


def test_a_full_disk(tmp_path):
    """A refusal of the system while writing is one line too, and leaves nothing."""
    with (
        pytest.raises(OutputError, match="cannot write .*: No space left on device"),
        replace_file(tmp_path / "a"),
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


def test_leftovers_are_locked_until_they_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has made a folder, and locks it after others found it free, sees that it is gone."""
    left = tmp_path / "onnxfq-leftover.part"
    left.mkdir()
    fcntl = pytest.importorskip("fcntl")
    tried: list[Path] = []

    def remove(path: Path, ignore_errors: bool) -> None:
        handle = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        os.rmdir(path)
        tried.append(path)

    with monkeypatch.context() as patched:
        patched.setattr(temporary.shutil, "rmtree", remove)
        temporary.remove_stale(tmp_path / "x")
        with temporary.scratch_folder(tmp_path) as made:
            assert tried == [left] and made.is_dir() and not left.exists()

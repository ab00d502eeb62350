"""Files: named when they are whole, so that a reader never meets half of one; .npz archives read."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import OutputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: no locks, and what a killed process left stays
    fcntl = None

UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise for a file that is no .npz, pickled, encrypted, cut off or damaged."""


_OPEN_FILES = "/proc/self/fd"
"""Where Linux shows the open files of a process, those without a name too."""

_TEMPORARY = ".part"
_SCRATCH = "onnxfq-"
_LOCK = "lock"


class SingleArrayError(ValueError):
    """An .npy, one array without a name, where an .npz is wanted."""


def check_writable(path: Path) -> None:
    """Raise OutputError now, before any work, when `path` could not be written later."""
    folder = path.parent
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    if not os.path.isdir(folder):
        raise OutputError(f"cannot write {path}: folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {folder}; choose another folder")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give the path of a temporary file; on success it takes the place of `path`, on failure it goes.

    Where the system can, the file has no name in any folder until it is whole, so that a process that is
    killed leaves nothing. Elsewhere it is a neighbour of `path`, and what a killed process left of such is
    taken away by the next that writes `path`.
    Raises OutputError when the folder is missing or not writable, or the disk refuses.
    """
    path = Path(path)
    check_writable(path)
    named = None
    try:
        handle = _unnamed(path.parent)
        if handle is None:
            _remove_stale(path)
            handle, named = _beside(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another place") from None
    try:
        temporary = named or Path(f"{_OPEN_FILES}/{handle}")
        yield temporary
        # Temporary files are private; give the result the rights any new file would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        if named is None and handle is not None and not _linked(handle, path):
            _remove_stale(path)
            named = _linked_beside(handle, path)
        if named is not None:
            named.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another place") from None
    finally:
        if handle is not None:
            os.close(handle)
        if named is not None:
            named.unlink(missing_ok=True)


def _unnamed(folder: Path) -> int | None:
    """Open a file in the file system of `folder` that has no name; None where the system has no such."""
    kind = getattr(os, "O_TMPFILE", None)
    if kind is None or not os.path.isdir(_OPEN_FILES):
        return None
    try:
        return os.open(folder, kind | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
            return None  # a file system, or a kernel, without them
        raise


def _linked(handle: int, path: Path) -> bool:
    """Give the open file without a name that of `path`; tell whether it was free."""
    folder = os.open(_OPEN_FILES, os.O_RDONLY)
    try:
        os.link(str(handle), path, src_dir_fd=folder)  # with a folder, Python follows the link to the file
    except FileExistsError:
        return False
    finally:
        os.close(folder)
    return True


def _linked_beside(handle: int, path: Path) -> Path:
    """Give the open file without a name one beside `path`, to be renamed at once."""
    _lock(handle)
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        if _linked(handle, name):
            return name


def _beside(path: Path) -> tuple[int | None, Path]:
    """Make a file beside `path`, locked for as long as its maker lives."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent)
        if not _lock(handle):
            os.close(handle)  # Windows renames no open file
            return None, Path(name)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another process took it for an abandoned one before it was locked


def _lock(handle: int) -> bool:
    """Hold the open file as long as it is open; tell whether the system has such locks."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)
    return fcntl is not None


def _remove_stale(path: Path) -> None:
    """Take away the temporary files of `path` whose makers are gone: nobody holds a lock on them."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        if _is_abandoned(other):
            other.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Tell whether nobody holds a lock on the file at `path`; False when it cannot be told."""
    if fcntl is None:
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder among the system's temporary files, removed at the end with all in it.

    Those of processes that were killed are removed by the next that makes one.
    """
    place = Path(tempfile.gettempdir())
    for lock in place.glob(f"{_SCRATCH}*/{_LOCK}"):
        if _is_abandoned(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
        # Locked before it has its name: an unlocked one is a dead one.
        making, lock = Path(folder) / f"{_LOCK}.new", Path(folder) / _LOCK
        with making.open("wb") as stream:
            if _lock(stream.fileno()):
                making.rename(lock)
            inside = Path(folder) / "files"
            inside.mkdir()
            yield inside


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 `text` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def load_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz by name. Raises one of `UNREADABLE` for any fault."""
    # Opened here: NumPy leaves a file open when its archive is cut off.
    with Path(path).open("rb") as stream:
        head = stream.read(6)
        if head == b"\x93NUMPY":
            raise SingleArrayError("it is a single array")
        if not head.startswith(b"PK"):  # NumPy would take it for a pickle and tell how to trust it
            raise ValueError("it is no zip archive")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name!r} in it is not an array")
    return arrays

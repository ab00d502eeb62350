"""Temporary files: unnamed if the system supports it, otherwise locked while their process lives.

Therefore no reader sees a partial file, and the free lock of a leftover shows that its process was killed.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from onnxfq.errors import OutputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no locks: leftovers of killed processes stay
    fcntl = None

OPEN_FILES = "/proc/self/fd"
"""Folder in which Linux lists the open files of a process, including unnamed ones."""

_TEMPORARY = ".part"
_LONG_NAME = 200
"""Bytes of a name from which a temporary name could pass the 255 of file systems."""
_SCRATCH = "onnxfq-"


def open_unnamed(folder: Path) -> int | None:
    """Open an unnamed file in the file system of `folder`; None if the system does not support it."""
    kind = getattr(os, "O_TMPFILE", None)
    if kind is None or not os.path.isdir(OPEN_FILES):
        return None
    try:
        return os.open(folder, kind | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
            return None  # the file system or the kernel does not support it
        raise


def link_file(handle: int, path: Path) -> bool:
    """Name the open unnamed file `path`; return whether the name was free."""
    folder = os.open(OPEN_FILES, os.O_RDONLY)
    try:
        os.link(str(handle), path, src_dir_fd=folder)  # with a folder, Python follows the link to the file
    except FileExistsError:
        return False
    finally:
        os.close(folder)
    return True


def _prefix(path: Path) -> str:
    """Return the first part of the temporary names of `path`; a long name is given by its hash."""
    name = os.fsencode(path.name)
    return f".{path.name if len(name) <= _LONG_NAME else hashlib.sha256(name).hexdigest()}."


def _draw_name(path: Path) -> Path:
    return path.with_name(f"{_prefix(path)}{secrets.token_hex(4)}{_TEMPORARY}")


def link_temporary(handle: int, path: Path) -> Path:
    """Give the open unnamed file a temporary name next to `path`, to be renamed at once."""
    _lock(handle)
    while True:
        name = _draw_name(path)
        if link_file(handle, name):
            return name


def name_again(path: Path) -> tuple[Path, int | None]:
    """Give the file at `path` a second, temporary name next to it; return it and the handle of its lock.

    On file systems without hard links it is renamed. Raises OSError.
    """
    name = _draw_name(path)
    try:
        handle: int | None = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        handle = None  # unreadable, so that nobody takes it for abandoned
    try:
        if handle is not None:
            _lock(handle)
        try:
            os.link(path, name, follow_symlinks=False)
        except OSError:
            path.rename(name)
    except BaseException:
        if handle is not None:
            os.close(handle)
        raise
    return name, handle


def open_temporary(path: Path) -> tuple[int | None, Path]:
    """Create a temporary file next to `path`, locked until its process ends."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_prefix(path), suffix=_TEMPORARY, dir=path.parent)
        if not _lock(handle):
            os.close(handle)  # Windows cannot rename an open file
            return None, Path(name)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another process removed it as abandoned before it was locked


def open_temporary_folder(path: Path) -> tuple[int | None, Path]:
    """Create a temporary folder next to `path`, locked until its process ends."""
    return _open_folder(_prefix(path), path.parent)


def _open_folder(prefix: str, place: Path | None) -> tuple[int | None, Path]:
    """Create a folder in `place` and lock it, as far as the system has locks."""
    while True:
        name = Path(tempfile.mkdtemp(prefix=prefix, suffix=_TEMPORARY, dir=place))
        if fcntl is None:
            return None, name
        try:
            handle = os.open(name, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process removed it as abandoned before it was locked
        if not _lock(handle) or os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock the open file until it is closed; return whether the system supports such locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False  # a file system without locks: leftovers of killed processes stay
        raise
    return True


def remove_stale(path: Path) -> None:
    """Remove the temporary files and folders of `path` whose processes ended, which leaves them unlocked."""
    for other in path.parent.glob(f"{glob.escape(_prefix(path))}*{_TEMPORARY}"):
        _remove_abandoned(other)


def _remove_abandoned(path: Path) -> None:
    """Remove the file or folder at `path` if nobody has its lock.

    The lock is held until it is gone: who has just made it, and locks it next, sees that.
    """
    if fcntl is None:
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name would wait for a writer
    except OSError:
        return
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    os.close(handle)


@contextmanager
def scratch_folder(place: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder among the system's temporary files; it is removed at the end with its content.

    The next process that calls this removes the folders of killed processes, known by their names and free
    locks.

    Args:
        place: the folder of temporary files; that of TMPDIR if None.
    """
    for other in Path(place or tempfile.gettempdir()).glob(f"{_SCRATCH}????????{_TEMPORARY}"):
        if _is_own_folder(other):
            _remove_abandoned(other)
    handle, folder = _open_folder(_SCRATCH, place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


@contextmanager
def room_for_scratch() -> Iterator[None]:
    """Raise OutputError, with folder and remedy, if a scratch folder runs out of space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OutputError(
            f"cannot write temporary files in {tempfile.gettempdir()}: {error.strerror}; make room there, or "
            "name another folder in TMPDIR"
        ) from None


def _is_own_folder(path: Path) -> bool:
    """Tell whether `path` is a folder, no link to one, of this user."""
    if fcntl is None:
        return False
    try:
        status = path.lstat()
    except OSError:  # another process removed it meanwhile
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()

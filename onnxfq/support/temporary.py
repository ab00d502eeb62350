"""Files that are not there yet: without a name where the system can, else locked while their maker lives.

So nothing half written is ever met, and what a killed process leaves is known by its lock being free.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from onnxfq.errors import OutputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: no locks, and what a killed process left stays
    fcntl = None

OPEN_FILES = "/proc/self/fd"
"""Where Linux shows the open files of a process, those without a name too."""

_TEMPORARY = ".part"
_SCRATCH = "onnxfq-"
_LOCK = "lock"
_FILES = "files"


def open_unnamed(folder: Path) -> int | None:
    """Open a file in the file system of `folder` that has no name; None where the system has no such."""
    kind = getattr(os, "O_TMPFILE", None)
    if kind is None or not os.path.isdir(OPEN_FILES):
        return None
    try:
        return os.open(folder, kind | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
            return None  # a file system, or a kernel, without them
        raise


def link_file(handle: int, path: Path) -> bool:
    """Give the open file without a name that of `path`; tell whether it was free."""
    folder = os.open(OPEN_FILES, os.O_RDONLY)
    try:
        os.link(str(handle), path, src_dir_fd=folder)  # with a folder, Python follows the link to the file
    except FileExistsError:
        return False
    finally:
        os.close(folder)
    return True


def link_temporary(handle: int, path: Path) -> Path:
    """Give the open file without a name one beside `path`, to be renamed at once."""
    _lock(handle)
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        if link_file(handle, name):
            return name


def open_temporary(path: Path) -> tuple[int | None, Path]:
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
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False  # a file system without them: what a killed process leaves there stays
        raise
    return True


def remove_stale(path: Path) -> None:
    """Take away the temporary files of `path` whose makers are gone: nobody holds a lock on them."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        if _is_abandoned(other):
            other.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Tell whether nobody holds a lock on the file at `path`; False when it cannot be told."""
    if fcntl is None:
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name would wait for a writer
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
    for other in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        if _is_own_scratch(other) and _is_abandoned(other / _LOCK):
            shutil.rmtree(other / _FILES, ignore_errors=True)  # the lock last: it tells whose the rest is
            shutil.rmtree(other, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
        # Locked before it has its name: an unlocked one is a dead one.
        making, lock = Path(folder) / f"{_LOCK}.new", Path(folder) / _LOCK
        with making.open("wb") as stream:
            if _lock(stream.fileno()):
                making.rename(lock)
            inside = Path(folder) / _FILES
            inside.mkdir()
            yield inside


@contextmanager
def room_for_scratch() -> Iterator[None]:
    """Raise OutputError, with place and remedy, where a scratch folder has no room for what is written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OutputError(
            f"cannot write temporary files in {tempfile.gettempdir()}: {error.strerror}; make room there, or "
            "name another folder in TMPDIR"
        ) from None


def _is_own_scratch(folder: Path) -> bool:
    """Tell whether `scratch_folder` made `folder`, for this user, and nobody put anything else there."""
    if fcntl is None:
        return False
    try:
        status = folder.lstat()
        return status.st_uid == os.getuid() and {_LOCK} <= set(os.listdir(folder)) <= {_LOCK, _FILES}
    except OSError:  # no folder, or another process took it away meanwhile
        return False

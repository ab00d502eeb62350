"""Guarded reading: regular files of a bounded size, so that no input blocks a run or fills the memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

MOST_TEXT = 128 << 20
"""Largest JSON or text file in bytes; its objects take many times as much memory."""


def open_input(path: str | Path) -> IO[bytes]:
    """Open a file to read its bytes.

    Raises OSError with a reason for users as its strerror: for a missing file, a folder, and a device or a
    pipe, which may have no end.
    """
    # A pipe would wait for a writer before anything can be asked about it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except ValueError:  # a NUL, which no name can hold
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: str | Path, most: int = MOST_TEXT) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises OSError as `open_input`, and for more."""
    with open_input(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            why = f"it has {size / 1e6:.0f} MB, and such a file has at most {most / 1e6:.0f}"
            raise OSError(errno.EFBIG, why, str(path))
        return stream.read()


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """Return a UTF-8 text without the byte order mark that it may begin with.

    Raises OSError as `read_bytes`, and UnicodeDecodeError.
    """
    return read_bytes(path, most).decode("utf-8-sig")


def is_inside(path: str | Path, folder: str | Path) -> bool:
    """Tell whether `path`, its links followed, lies in `folder`, or in the cache that `folder` is part of.

    Caches of Hugging Face keep folders `snapshots/REVISION` of links to files in a folder `blobs` next to it.
    """
    end, home = (Path(os.path.realpath(one)) for one in (path, folder))
    caches = (parent.parent / "blobs" for parent in home.parents if parent.name == "snapshots")
    return end.is_relative_to(home) or end.parent in caches

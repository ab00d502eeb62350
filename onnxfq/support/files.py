"""Files: named when they are whole, so that a reader never meets half of one; .npz archives read."""

from __future__ import annotations

import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import OutputError
from onnxfq.support import temporary as temporary_files

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


NPY_MAGIC = b"\x93NUMPY"
"""What an .npy begins with."""


class SingleArrayError(ValueError):
    """An .npy, one array without a name, where an .npz is wanted."""


def check_writable(path: Path) -> None:
    """Raise OutputError now, before any work, when `path` could not be written later."""
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    if os.path.exists(path) and not os.path.isfile(path):  # a device, for one: renaming onto it would end it
        raise OutputError(f"cannot write {path}: it is a device or a pipe; give the name of a file")
    folder = Path(os.path.realpath(path)).parent if os.path.islink(path) else path.parent
    if not os.path.isdir(folder):
        raise OutputError(f"cannot write {path}: folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {folder}; choose another folder")


def check_output(output: str | Path, *others: object) -> None:
    """Raise OutputError now when `output` could not be written later, or is the file of one of `others`.

    others: what else the command reads or writes; what is no path is passed over.
    """
    for other in others:
        if isinstance(other, (str, Path)) and Path(output).resolve() == Path(other).resolve():
            raise OutputError(f"output {output} is another file of this command too; give another file name")
    check_writable(Path(output))


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Give the path of a temporary file; on success it takes the place of `path`, on failure it goes.

    Where the system can, the file has no name in any folder until it is whole, so that a process that is
    killed leaves nothing. Elsewhere it is a neighbour of `path`, and what a killed process left of such is
    taken away by the next that writes `path`. A link stays one: what it leads to is replaced.
    Raises OutputError when the folder is missing or not writable, or the disk refuses.
    """
    path = Path(path)
    check_writable(path)
    if os.path.islink(path):
        path = Path(os.path.realpath(path))
    named = None
    try:
        handle = temporary_files.open_unnamed(path.parent)
        if handle is None:
            temporary_files.remove_stale(path)
            handle, named = temporary_files.open_temporary(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another place") from None
    try:
        temporary = named or Path(f"{temporary_files.OPEN_FILES}/{handle}")
        yield temporary
        # Temporary files are private; give the result the rights any new file would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        if named is None and handle is not None and not temporary_files.link_file(handle, path):
            temporary_files.remove_stale(path)
            named = temporary_files.link_temporary(handle, path)
        if named is not None:
            named.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another place") from None
    finally:
        if handle is not None:
            os.close(handle)
        if named is not None:
            named.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 `text` to `path`, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def load_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz by name. Raises one of `UNREADABLE` for any fault."""
    # Opened here: NumPy leaves a file open when its archive is cut off.
    with Path(path).open("rb") as stream:
        head = stream.read(6)
        if head == NPY_MAGIC:
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


def load_npy(path: str | Path, mapped: bool = False) -> NDArray[Any]:
    """Return the array of an .npy, mapped or read. Raises one of `UNREADABLE` for any fault."""
    with Path(path).open("rb") as stream:
        if stream.read(6) != NPY_MAGIC:  # NumPy would take it for a pickle and tell how to trust it
            raise ValueError("it does not begin as one")
    return np.asarray(np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))

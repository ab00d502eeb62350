"""Atomic file writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxfq.errors import OutputError
from onnxfq.support import temporary as temporary_files


def check_writable(path: Path) -> None:
    """Raise OutputError before any work if `path` cannot be written later."""
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    if os.path.exists(path) and not os.path.isfile(path):  # renaming onto a device would remove it
        raise OutputError(f"cannot write {path}: it is a device or a pipe; give the name of a file")
    if os.path.islink(path) and os.path.islink(os.path.realpath(path)):
        raise OutputError(f"cannot write {path}: it is a link that leads to itself; remove it")
    folder = Path(os.path.realpath(path)).parent if os.path.islink(path) else path.parent
    if not os.path.isdir(folder):
        raise OutputError(f"cannot write {path}: folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {folder}; choose another folder")


def check_output(output: str | Path, *others: object) -> None:
    """Raise OutputError if `output` cannot be written later, or is one of `others`.

    Args:
        output: path of the file to write.
        others: other paths that the command reads or writes; values that are not paths are ignored.
    """
    for other in others:
        if isinstance(other, (str, Path)) and os.path.realpath(output) == os.path.realpath(other):
            raise OutputError(f"output {output} is another file of this command too; give another file name")
    check_writable(Path(output))


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of a temporary file; it replaces `path` on success and is removed on failure.

    If the system supports it, the file has no name until it is complete: a killed process leaves nothing.
    Otherwise the file lies next to `path`, and the next process that writes `path` removes the leftovers of
    killed processes. A link is kept, and its target is replaced.
    Raises OutputError if the folder is missing or not writable, or if writing fails.
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
        # Temporary files are private; give the result the permissions of any new file.
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
    """Write UTF-8 `text` to `path` completely or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

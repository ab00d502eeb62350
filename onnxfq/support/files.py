"""Atomic file writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxfq.errors import OutputError
from onnxfq.support import temporary as temporary_files
from onnxfq.support.outputs import (
    WrittenFile,
    check_apart,
    check_not_read,
    finish_or_wait,
    make_parents,
    writing,
)


def check_writable(path: Path) -> None:
    """Raise OutputError before any work if `path` cannot be written later."""
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    if os.path.exists(path) and not os.path.isfile(path):  # renaming onto a device would remove it
        raise OutputError(f"cannot write {path}: it is a device or a pipe; give the name of a file")
    if os.path.islink(path) and os.path.islink(os.path.realpath(path)):
        raise OutputError(f"cannot write {path}: it is a link that leads to itself; remove it")
    folder = Path(os.path.realpath(path)).parent if os.path.islink(path) else path.parent
    while not os.path.lexists(folder) and folder != folder.parent:  # it will be made
        folder = folder.parent
    if not os.path.isdir(folder):
        raise OutputError(f"cannot write {path}: {folder} is a file; choose another place")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a name that is too long, or no name of a file
        why = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {path}: {why}; choose another place") from None
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {folder}; choose another folder")


def check_output(output: str | Path, *others: object) -> None:
    """Raise OutputError if `output` cannot be written later, or is one of `others`.

    Args:
        output: path of the file to write.
        others: other paths that the command reads or writes; values that are not paths are ignored.
    """
    check_apart(Path(output), [Path(other) for other in others if isinstance(other, (str, Path))])
    check_writable(Path(output))


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of a temporary file; it replaces `path` on success and is removed on failure.

    If the system supports it, the file has no name until it is complete: a killed process leaves nothing.
    Otherwise the file lies next to `path`, and the next process that writes `path` removes the leftovers of
    killed processes. A link is kept, and its target is replaced. A missing folder is made. Within
    `write_together` the file waits for the others of the command.
    Raises OutputError if the folder is not writable, or if writing fails.
    """
    path = Path(path)
    check_writable(path)
    if os.path.islink(path):
        path = Path(os.path.realpath(path))
    check_not_read(path)
    named = None
    with writing(path), make_parents(path) as made:
        handle = temporary_files.open_unnamed(path.parent)
        if handle is None:
            temporary_files.remove_stale(path)
            handle, named = temporary_files.open_temporary(path)
    temporary = named or Path(f"{temporary_files.OPEN_FILES}/{handle}")
    with _place(WrittenFile(handle, named, path, made=made), temporary, 0o666):
        yield temporary


@contextmanager
def replace_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; it becomes `path` on success and is removed on failure.

    A killed process leaves nothing at `path`; the next one that writes it removes the leftovers. Within
    `write_together` the folder waits for the files of the command. Raises OutputError if `path` is anything
    but new or an empty folder, before and after, or if writing fails.
    """
    path = Path(os.path.realpath(path))
    check_folder(path)
    with writing(path), make_parents(path) as made:
        temporary_files.remove_stale(path)
        handle, folder = temporary_files.open_temporary_folder(path)
    with _place(WrittenFile(handle, folder, path, is_folder=True, made=made), folder, 0o777):
        yield folder


@contextmanager
def _place(written: WrittenFile, temporary: Path, mode: int) -> Iterator[None]:
    """Give what was written in the block its name, now or with the others; remove it if the block raises."""
    waits = False
    try:
        with writing(written.path):
            yield
            # Temporary files are private; the result gets the permissions of any new one.
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(mode & ~mask)
            waits = finish_or_wait(written)
    finally:
        if not waits:
            written.close()


def check_folder(path: Path) -> None:
    """Raise OutputError unless `path` is a folder to be: new, or empty, and not the current one."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(
            f"{path} exists and is not an empty folder; give a new one, so that no files are mixed"
        )
    if path.exists() and path.samefile(Path.cwd()):
        raise OutputError(
            f"{path} is the current folder, which cannot be replaced as a whole; give a new one"
        )
    check_place(path)


def check_place(folder: Path) -> None:
    """Raise OutputError if `folder` can neither be created nor written to."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder")
    check_writable(folder / "any" if folder.exists() else folder)


@contextmanager
def make_folder(path: str | Path | None) -> Iterator[Path | None]:
    """Yield the folder `path` for files of one command, created if it is new; None is yielded as it is.

    A new folder is removed again if the block raises. Raises OutputError for
    a file, for a name with the suffix of a model, and without permission.
    """
    if path is None:
        yield None
        return
    folder = Path(path)
    if not folder.exists() and folder.suffix == ".onnx":
        raise OutputError(
            f"several models are written into a folder, and {folder} names a file; give a folder"
        )
    check_place(folder)
    with make_parents(folder / "any"):
        yield folder


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 `text` to `path` completely or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

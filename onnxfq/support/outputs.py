"""Outputs of one command: they appear together or not at all, and none replaces an input."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from onnxfq.errors import OutputError
from onnxfq.support import temporary as temporary_files

log = logging.getLogger(__name__)


@dataclass
class WrittenFile:
    """A complete file or folder that has no name yet, or a temporary one.

    Attributes:
        handle: open file, which holds the lock of a temporary name; None if there are no locks.
        named: its temporary name; None without one.
        path: where it belongs.
        is_folder: whether it is a folder, which replaces nothing but an empty one.
        made: folders that were made for it, the outermost first.
        taken: whether it has its name.
        former: temporary name of the file that stands at the path, by which it is restored.
        was_empty: whether an empty folder stands at the path.
    """

    handle: int | None
    named: Path | None
    path: Path
    is_folder: bool = False
    made: tuple[Path, ...] = ()
    taken: bool = False
    former: Path | None = None
    was_empty: bool = False
    _lock: int | None = None

    def take_name(self) -> None:
        """Put it at its path. Raises OSError, or OutputError for a folder that is not empty any more."""
        if self.named is None and self.handle is not None:
            if temporary_files.link_file(self.handle, self.path):
                self.taken = True
                return
            temporary_files.remove_stale(self.path)
            self.named = temporary_files.link_temporary(self.handle, self.path)
        if self.named is not None:
            try:
                self.named.replace(self.path)
            except OSError as error:
                if not self.is_folder or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                what = f"{self.path} was filled by another process meanwhile; give a new folder"
                raise OutputError(what) from None
            self.named, self.taken = None, True

    def keep_former(self) -> None:
        """Give the file at the path a second name, for `restore`. Raises OSError."""
        if os.path.isdir(self.path):
            if not self.is_folder:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.was_empty = True
        elif os.path.lexists(self.path):
            self.former, self._lock = temporary_files.name_again(self.path)

    def restore(self) -> None:
        """Put back what stood at the path, and give up the name."""
        former, self.former = self.former, None  # it stays under its temporary name if this fails
        try:
            if former is not None:
                former.replace(self.path)
                former.unlink(missing_ok=True)  # two names of one file are not replaced
            elif self.taken:
                _remove(self.path, self.is_folder)
                if self.was_empty:
                    self.path.mkdir()
        except OSError as error:
            kept = "" if former is None else f"; its former content is in {former}"
            log.warning("%s could not be restored: %s%s", self.path, error.strerror or error, kept)

    def size(self) -> int:
        """Return the bytes of the file, or of all files in the folder."""
        if self.is_folder and self.named is not None:
            return folder_bytes(self.named)
        place = self.handle if self.named is None else self.named
        return 0 if place is None else os.stat(place).st_size

    def close(self) -> None:
        """Remove what has no name but a temporary one, and release the files."""
        if self.named is not None:
            _remove(self.named, self.is_folder)
        if self.former is not None:
            self.former.unlink(missing_ok=True)
        for handle in (self.handle, self._lock):
            if handle is not None:
                os.close(handle)
        remove_empty(self.made)


@contextmanager
def make_parents(path: Path) -> Iterator[tuple[Path, ...]]:
    """Make the folders above `path` that are missing, and yield them; they go again if the block raises."""
    missing = [folder for folder in path.parents if not folder.exists()]
    made = tuple(reversed(missing))
    try:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield made
    except BaseException:
        remove_empty(made)
        raise


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove the empty ones of folders in each other, the outermost first."""
    for folder in reversed(folders):
        with suppress(OSError):  # it has files
            folder.rmdir()


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _remove(path: Path, is_folder: bool) -> None:
    shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink(missing_ok=True)


@dataclass
class _OutputGroup:
    """Files and folders of one command that wait for each other.

    Attributes:
        folders: only what is in these belongs to it; files elsewhere are temporary.
        inputs: files that may not be replaced, and folders whose files may not.
    """

    folders: frozenset[Path]
    inputs: frozenset[Path]
    files: list[WrittenFile] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)

    def take_names(self) -> None:
        """Put all at their paths, or leave everything as it was. Raises OutputError."""
        try:
            for written in self.files[:-1]:  # after the last one nothing can fail
                with writing(written.path):
                    written.keep_former()
            for written in self.files:
                with writing(written.path):
                    written.take_name()
        except BaseException:
            for written in reversed(self.files):
                written.restore()
            raise


_group: ContextVar[_OutputGroup | None] = ContextVar("_group", default=None)


@contextmanager
def write_together(outputs: Iterable[Path], inputs: Iterable[Path] = ()) -> Iterator[None]:
    """Let what is written next to or in `outputs` take its names at the end, all of it or nothing.

    The former files are restored if one of them cannot take its name.

    Args:
        outputs: files and folders that a command writes.
        inputs: files and folders that it reads; nothing in them is replaced.

    Raises OutputError if a file cannot take its name.
    """
    real = [Path(os.path.realpath(path)) for path in outputs]
    outer = _group.get()
    if outer is not None and all(path.parent in outer.folders for path in real):
        yield
        return
    group = _OutputGroup(
        frozenset({path.parent for path in real} | set(real)),
        frozenset(Path(os.path.realpath(path)) for path in inputs) | (outer.inputs if outer else frozenset()),
    )
    token = _group.set(group)
    try:
        yield
        group.take_names()
    finally:
        _group.reset(token)
        for written in group.files:
            written.close()
    for act in group.after:
        try:
            act()
        except OSError as error:  # the outputs stand
            log.warning("%s: %s", error.filename, error.strerror)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while `path` is written into an OutputError that names it."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another place") from None


def finish_or_wait(written: WrittenFile) -> bool:
    """Put `written` at its path, or leave that to the end of the command; return whether it waits.

    Raises OSError.
    """
    group = _group_of(written.path)
    if group is None:
        written.take_name()
        return False
    group.files.append(written)
    return True


def pending_sizes() -> dict[Path, int]:
    """Return the bytes of the files that wait for the end of the running command, by their paths."""
    group = _group.get()
    return {} if group is None else {written.path: written.size() for written in group.files}


def act_after_writing(path: Path, act: Callable[[], None]) -> None:
    """Call `act` once the file at `path` has its name, with the other files of the command."""
    group = _group_of(path)
    if group is None:
        act()
    else:
        group.after.append(act)


def _group_of(path: Path) -> _OutputGroup | None:
    """Return the running command's group if the file at `path` belongs to it."""
    group = _group.get()
    return group if group is not None and Path(os.path.realpath(path.parent)) in group.folders else None


def check_apart(output: Path, inputs: Iterable[Path]) -> None:
    """Raise OutputError if writing `output` would replace one of `inputs`, or a file in a folder of them."""
    if "\0" in str(output):
        raise OutputError(f"cannot write {str(output)!r}: no file can have this name; choose another place")
    real = Path(os.path.realpath(output))
    for path in inputs:
        if "\0" in str(path):  # its reader reports it
            continue
        other = Path(os.path.realpath(path))
        if real == other:
            raise OutputError(f"output {output} is another file of this command too; give another file name")
        if other in real.parents and other.is_dir() and real.exists() and not real.is_dir():
            raise OutputError(
                f"output {output} would replace a file in folder {path}, which this command reads; give "
                "another file name"
            )


def check_not_read(output: Path) -> None:
    """Raise OutputError if `output` is an input of the command that runs, see `write_together`."""
    group = _group.get()
    if group is not None:
        check_apart(output, group.inputs)

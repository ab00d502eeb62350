"""Outputs of one command: they appear together or not at all, and none replaces an input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from onnxfq.errors import OutputError
from onnxfq.support import temporary as temporary_files


@dataclass
class WrittenFile:
    """A complete file that has no name yet, or a temporary one.

    Attributes:
        handle: open file, which holds the lock of a temporary name; None if there are no locks.
        named: its temporary name; None without one.
        path: where it belongs.
    """

    handle: int | None
    named: Path | None
    path: Path

    def take_name(self) -> None:
        """Put the file at its path. Raises OSError."""
        if self.named is None and self.handle is not None:
            if temporary_files.link_file(self.handle, self.path):
                return
            temporary_files.remove_stale(self.path)
            self.named = temporary_files.link_temporary(self.handle, self.path)
        if self.named is not None:
            self.named.replace(self.path)

    def size(self) -> int:
        """Return its bytes."""
        place = self.handle if self.named is None else self.named
        return 0 if place is None else os.stat(place).st_size

    def close(self) -> None:
        """Remove what has not taken its name, and release the file."""
        if self.handle is not None:
            os.close(self.handle)
        if self.named is not None:
            self.named.unlink(missing_ok=True)


@dataclass
class _Group:
    """Files of one command that wait for each other.

    Attributes:
        folders: only files in these belong to it; files elsewhere are temporary.
        inputs: files that may not be replaced, and folders whose files may not.
    """

    folders: frozenset[Path]
    inputs: frozenset[Path]
    files: list[WrittenFile] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)


_group: ContextVar[_Group | None] = ContextVar("_group", default=None)


@contextmanager
def write_together(outputs: Iterable[Path], inputs: Iterable[Path]) -> Iterator[None]:
    """Let the files that are written next to or in `outputs` take their names at the end, or none of them.

    Args:
        outputs: files and folders that a command writes.
        inputs: files and folders that it reads; nothing in them is replaced.

    Raises OutputError if a file cannot take its name.
    """
    real = [Path(os.path.realpath(path)) for path in outputs]
    group = _Group(
        frozenset({path.parent for path in real} | set(real)),
        frozenset(Path(os.path.realpath(path)) for path in inputs),
    )
    token = _group.set(group)
    try:
        yield
        for written in group.files:
            with writing(written.path):
                written.take_name()
        for act in group.after:
            act()
    finally:
        _group.reset(token)
        for written in group.files:
            written.close()


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


def _group_of(path: Path) -> _Group | None:
    """Return the running command's group if the file at `path` belongs to it."""
    group = _group.get()
    return group if group is not None and Path(os.path.realpath(path.parent)) in group.folders else None


def check_apart(output: Path, inputs: Iterable[Path]) -> None:
    """Raise OutputError if writing `output` would replace one of `inputs`, or a file in a folder of them."""
    real = Path(os.path.realpath(output))
    for one in inputs:
        other = Path(os.path.realpath(one))
        if real == other:
            raise OutputError(f"output {output} is another file of this command too; give another file name")
        if other in real.parents and other.is_dir() and real.exists() and not real.is_dir():
            raise OutputError(
                f"output {output} would replace a file in folder {one}, which this command reads; give "
                "another file name"
            )


def check_not_read(output: Path) -> None:
    """Raise OutputError if `output` is an input of the command that runs, see `write_together`."""
    group = _group.get()
    if group is not None:
        check_apart(output, group.inputs)

"""Standard output and error of a command: results are shown at the end, and a closed stream ends no work."""

from __future__ import annotations

import ctypes
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from typing import Any, TextIO

from onnxfq.errors import OutputError
from onnxfq.support.tables import measure_room, room

_OUT, _ERR = 1, 2
"""Descriptors of standard output and standard error."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters of control, of no width, and of another direction."""

_results: ContextVar[io.StringIO | None] = ContextVar("_results", default=None)


class _Waiting(io.StringIO):
    """Text that waits for standard output, and looks like it to the library that prints the help."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()


class _Lenient:
    """Stream for notes: a reader that is gone and a full disk end no work."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream if self._stream is not None else io.StringIO(), name)


@contextmanager
def hold_results() -> Iterator[None]:
    """Print what goes to standard output within the block at its end, unless it raises.

    A closed pipe, as of `head`, is not a fault. Raises OutputError if it cannot be printed.
    """
    shown = sys.stdout
    waiting = _Waiting(shown)
    token, width = _results.set(waiting), room.set(measure_room(shown))
    try:
        with redirect_stderr(_Lenient(sys.stderr)), redirect_stdout(waiting):
            try:
                yield
            except SystemExit:  # a completion of the shell ends so
                _print(waiting.getvalue(), shown)
                raise
    finally:
        _results.reset(token)
        room.reset(width)
    _print(waiting.getvalue(), shown)


def show(text: str) -> None:
    """Print lines of a result; what would move or turn the text of a terminal is escaped, as JSON has it."""
    print(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text), file=_results.get())


@contextmanager
def keep_output_clean() -> Iterator[None]:
    """Let all that is printed within the block but results go to standard error.

    Functions of the user, libraries and programs that they start may print, and results may be JSON.
    """
    with redirect_stdout(sys.stderr):
        kept = _join(_OUT, _ERR)
        try:
            yield
        finally:
            if kept is not None:
                _flush_held_back()
                os.dup2(kept, _OUT)
                os.close(kept)


def _join(one: int, other: int) -> int | None:
    """Let the descriptor `one` lead where `other` does; return a copy of what it was, if there are both."""
    try:
        os.fstat(other)
        _flush_held_back()
        kept = os.dup(one)
    except OSError:
        return None
    os.dup2(other, one)
    return kept


def _flush_held_back() -> None:
    """Write out what Python and C libraries have printed and hold back."""
    with suppress(OSError, ValueError):
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
    with suppress(OSError, AttributeError, TypeError):  # not on Windows
        ctypes.CDLL(None).fflush(None)


def _print(text: str, stream: TextIO | None) -> None:
    if stream is None or not text:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise OutputError(
            f"cannot write to standard output: {error.strerror}; the files of the command are written"
        ) from None


def _discard(stream: TextIO) -> None:
    """Let `stream` lead nowhere: Python writes the rest of it when it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)

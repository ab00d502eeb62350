"""Native libraries on files of anyone: a panic, endless memory and endless time end in one line."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar

from onnxfq.errors import OnnxfqError, join_lines
from onnxfq.support.interrupts import ENDING, end_with
from onnxfq.support.memory import limit_data
from onnxfq.support.readings import READING

log = logging.getLogger(__name__)

T = TypeVar("T")

SECONDS = 60.0
"""Longest time for one result."""
MEMORY = 1 << 30
"""Most bytes that the work may allocate."""


def run_confined(
    work: Callable[[], Iterable[T]], error: type[OnnxfqError], what: str, remedy: str
) -> Iterator[T]:
    """Yield what `work` yields, in a process of its own with bounds on time and memory; here without fork.

    Args:
        work: yields what can be pickled.
        error: class of the error for whatever ends the work, also for a panic, which is no Exception.
        what: names the work in it, such as "the tokenizer x".
        remedy: of the error.

    Raises errors of this package as `work` raises them, and `error` in one line for all others.
    """
    for value, fault in _run_apart(work) if hasattr(os, "fork") else _run(work):
        if isinstance(fault, OnnxfqError):
            raise fault
        if fault is not None:
            raise error(f"{what}: {join_lines(fault)[:200]}; {remedy}")
        yield value


Results = Iterator[tuple[T, OnnxfqError | str | None]]
"""Results, each without a fault, and at most one fault at the end."""


def _run(work: Callable[[], Iterable[T]]) -> Results[T]:
    try:
        for value in work():
            yield value, None
    except GeneratorExit:
        raise
    except OnnxfqError as fault:
        yield None, fault  # type: ignore[misc]
    except BaseException as fault:  # Rust's panic has another base
        yield None, f"{type(fault).__name__}: {fault}"  # type: ignore[misc]


def _run_apart(work: Callable[[], Iterable[T]]) -> Results[T]:
    (reader, writer), parent = Pipe(duplex=False), os.getpid()
    with tempfile.TemporaryFile() as printed, reader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of other libraries stay behind
            child = os.fork()
        if child == 0:
            _be_child(work, writer, printed, parent)
        writer.close()
        how = ""
        try:
            with suppress(EOFError):  # it has ended, or its library closed the pipe
                while reader.poll(SECONDS):
                    result = reader.recv()
                    if result is None:
                        return
                    if isinstance(result, _Note):
                        log.log(result.level, "%s", result.text, extra=result.extra)
                    else:
                        yield result
                how = f"took more than {SECONDS:.0f} s"
        finally:
            os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        yield None, f"its process {how or describe_end(code, printed)}"  # type: ignore[misc]


class _Note(NamedTuple):
    level: int
    text: str
    extra: dict[str, Any] | None


class _SentNotes(logging.Handler):
    """Handler that hands notes on to the process that waits."""

    def __init__(self, writer: Connection) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        extra = {READING: vars(record)[READING]} if READING in vars(record) else None
        self._writer.send(_Note(record.levelno, record.getMessage(), extra))


def _be_child(
    work: Callable[[], Iterable[T]], writer: Connection, printed: IO[bytes], parent: int
) -> NoReturn:
    """Do the work and end; the standard error, where libraries print their panics, is `printed`."""
    try:
        end_with(parent)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(printed.fileno(), 2)
        logger = logging.getLogger("onnxfq")
        logger.handlers[:], logger.propagate = [_SentNotes(writer)], False
        status = Path("/proc/self/status")
        lines = status.read_text("ascii").splitlines() if status.exists() else []
        limit_data(
            MEMORY + next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData")), 0)
        )
        for result in _run(work):
            writer.send(result)
        writer.send(None)
    finally:
        os._exit(1)


def describe_end(code: int, printed: IO[bytes]) -> str:
    """Return how a process ended, by its return code, and what it `printed` last, as of short memory."""
    printed.seek(0)
    last = printed.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"{how} ({join_lines(last)[:150]})" if last else how

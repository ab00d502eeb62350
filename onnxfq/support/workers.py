"""`Worker`: a native library in another process, which keeps what it opened; whatever ends it is one line."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import tempfile
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from itertools import count
from typing import IO, Any

from onnxfq.errors import join_lines
from onnxfq.support import serving
from onnxfq.support.children import python_command, python_environment
from onnxfq.support.memory import limit_memory

_SERVE = "import runpy, sys; runpy.run_path(sys.argv[1])['serve'](*sys.argv[2:])"


class WorkerFault(Exception):
    """The reason that ended a call in a worker.

    Attributes:
        kind: name of the exception's class; empty if the process ended or took too long.
        text: its message, or how the process ended.
    """

    def __init__(self, kind: str, text: str) -> None:
        """Take the class and the message."""
        super().__init__(f"{kind}: {text}" if kind and text else kind or text)
        self.kind, self.text = kind, text


class Worker:
    """A process with the functions of one file; memory and the time of a call are bounded.

    Several threads may ask at the same time. The process ends with this one, however that ends, and with the
    first call that takes too long.
    """

    def __init__(self, file: str, most: int | None = None) -> None:
        """Start the process.

        Args:
            file: defines the functions; what it imports of this package takes a part of a second.
            most: bytes that the process may allocate; None for what is free.
        """
        self.seconds = 0.0
        """Time that calls took in the process, without the way of their arguments and results."""
        self.ended = ""
        """How the process ended; empty while it runs."""
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers, self._lock = count(), threading.Lock()
        _open.add(self)
        started: Future[subprocess.Popen[bytes]] = Future()
        # The kernel ends a process with the thread that started it: that one waits for its end.
        self._reader = threading.Thread(target=self._read, args=(file, most, started), daemon=True)
        self._reader.start()
        self._process = started.result()
        atexit.register(self.close)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, why: str = "it was closed") -> None:
        """End the process, and whatever waits for it with `why`."""
        self.ended = self.ended or why
        if self._reader.is_alive():
            _kill(self._process)
        self._reader.join()
        atexit.unregister(self.close)

    def ask(self, name: str, *given: Any, seconds: float) -> Any:
        """Return the result of the function called `name`.

        Args:
            name: a function of the file.
            given: its arguments; like its result they can be pickled.
            seconds: longest time for the call; more of it ends the process.

        Raises WorkerFault for whatever the function raises or the process ends with.
        """
        return self.wait(self.begin(name, *given), seconds)

    def begin(self, name: str, *given: Any) -> Future[Any]:
        """Ask as `ask` does, and return what the result will be in."""
        reply: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = reply
            if not self.ended:
                self._send((number, name, given, _find_folder()))
        if self.ended:
            self._fail()
        return reply

    def wait(self, reply: Future[Any], seconds: float) -> Any:
        """Return the result of a call that `begin` began. Raises WorkerFault as `ask` does."""
        try:
            return reply.result(seconds)
        except LateError:
            self.close(f"took more than {seconds:g} s")
            raise WorkerFault("", self.ended) from None

    def _send(self, request: tuple[int, str, tuple[Any, ...], str]) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(request, self._process.stdin, 5)
            self._process.stdin.flush()
        except OSError:
            self._reader.join()  # the process has ended, and the reader tells how

    def _read(self, file: str, most: int | None, started: Future[subprocess.Popen[bytes]]) -> None:
        """Start the process, hand replies to those who wait for them, and tell how it ended."""
        words = python_command(_SERVE, serving.__file__, file, str(os.getpid()))
        with tempfile.TemporaryFile() as printed:
            try:
                process = subprocess.Popen(
                    words,
                    env=os.environ | python_environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=printed,
                    start_new_session=True,
                )
            except OSError as error:
                started.set_exception(error)
                return
            limit_memory(process.pid, most)
            started.set_result(process)
            assert process.stdin is not None and process.stdout is not None
            try:
                while True:
                    number, value, seconds, fault = pickle.load(process.stdout)
                    self.seconds += seconds
                    reply = self._waiting.pop(number)
                    reply.set_result(value) if fault is None else reply.set_exception(WorkerFault(*fault))
            except EOFError:  # it has ended
                pass
            except Exception as fault:  # whoever waits must hear that no reply comes
                self.ended = self.ended or f"sent what cannot be read: {join_lines(str(fault))}"
            _kill(process)
            code = process.wait()
            self.ended = self.ended or _describe_end(code, printed)
        self._fail()
        process.stdout.close()
        with suppress(OSError):  # a request that it did not read
            process.stdin.close()

    def _fail(self) -> None:
        for number in list(self._waiting):
            reply = self._waiting.pop(number, None)
            if reply is not None:
                reply.set_exception(WorkerFault("", self.ended))


def _find_folder() -> str:
    """Return the working folder, which relative paths start from; it is empty if somebody removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _describe_end(code: int, printed: IO[bytes]) -> str:
    """Return how a process ended, by its return code, and what it `printed` last, as of short memory."""
    printed.seek(0)
    last = printed.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"{how} ({join_lines(last)[:150]})" if last else how


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that nobody has waited for, and those that its library started."""
    if os.name != "posix":
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


_open: weakref.WeakSet[Worker] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Mark all workers as ended in a process that was forked: it has no thread that reads replies."""
    for worker in _open:
        worker.ended = worker.ended or "belongs to the process that this one was forked from"


if hasattr(os, "register_at_fork"):  # POSIX only
    os.register_at_fork(after_in_child=_leave_to_parent)

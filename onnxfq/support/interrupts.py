"""Signals that end a command: an exception, once, or a question that long work asks.

A signal to a whole process group, as of systemd and `timeout`, comes twice: the process that watches over the
command passes it on. Those within `_TOGETHER` are one signal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals by which users, systemd and closed terminals end a command."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal number, as in shells."""

_TOGETHER = 2.0
"""Seconds after a signal in which others belong to it."""

_came = float("-inf")
_raised = False


def is_first() -> bool:
    """Tell whether the signal that is handled is none that comes together with an earlier one."""
    global _came
    now = time.monotonic()
    first = now - _came > _TOGETHER
    _came = now if first else _came
    return first


def interrupt(number: int, frame: object) -> None:
    """Handle a signal: raise KeyboardInterrupt, so that temporary files are removed."""
    global _raised
    if is_first():
        _raised = True
        raise KeyboardInterrupt


def was_raised() -> bool:
    """Tell whether `interrupt` raised, so that an error that ends the command comes from it.

    Libraries turn the exception into their own, as in an import, and a process ends that got the signal too.
    """
    return _raised


def end_with(parent: int) -> None:
    """End this process with its parent `parent`, even if that is killed; Linux only."""
    import ctypes

    set_signal = getattr(ctypes.CDLL(None), "prctl", None)
    if set_signal is not None:
        set_signal(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


@contextmanager
def note_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed; meanwhile Ctrl-C interrupts no work.

    A second Ctrl-C has its usual effect. Outside of the main thread, to which Python delivers signals,
    nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came = False
    usual = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        nonlocal came
        if usual is not interrupt or is_first():
            came = True
            signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, usual)

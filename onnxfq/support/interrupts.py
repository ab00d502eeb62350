"""`note_interrupts`: Ctrl-C as a question that long work asks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
        came = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, usual)

"""Functions of one file for another process; `workers` runs this file alone, without the package.

Importing the package would take longer than most of what a worker does. Requests are pickles on the standard
input, each answered on the standard output, several at a time.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any


def serve(file: str, parent: str) -> None:
    """Answer requests for the functions of `file` until the standard input ends, then end this process.

    A request is (number, name of a function, its arguments, working folder of who asks; empty for the last
    one). A reply is (number, result, seconds that the call took, fault); a fault is None, or the name of an
    exception's class and its message.
    """
    runpy.run_path(str(Path(__file__).with_name("interrupts.py")))["end_with"](int(parent))
    # The library prints as well; its output must not mix with the replies.
    replies, lock = os.fdopen(os.dup(1), "wb"), threading.Lock()
    os.dup2(2, 1)
    functions = runpy.run_path(file)

    def answer(number: int, name: str, given: tuple[Any, ...]) -> None:
        begun = perf_counter()
        try:
            value = functions[name](*given)
            reply = pickle.dumps((number, value, perf_counter() - begun, None), 5)
        except BaseException as fault:  # panics of Rust lie outside Exception
            reply = pickle.dumps((number, None, 0.0, (type(fault).__name__, str(fault))))
        with lock:
            replies.write(reply)
            replies.flush()

    pool = ThreadPoolExecutor()
    try:
        while True:
            *request, folder = pickle.load(sys.stdin.buffer)
            if folder:
                with suppress(OSError):  # somebody removed it since
                    os.chdir(folder)
            pool.submit(answer, *request)
    except EOFError:
        os._exit(0)  # whatever still runs: nobody waits for it

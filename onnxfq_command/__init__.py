"""The console command before `onnxfq` is imported, which takes a second: there too Ctrl-C is one line."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Import and run the command line; return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler  # a parent may have it ignored
    if ours:
        # No exception: extension modules turn those into errors of their own. Nothing is written yet.
        signal.signal(signal.SIGINT, _interrupted)
    from onnxfq.cli.main import main as run

    if ours:
        signal.signal(signal.SIGINT, before)
    return run()


def _interrupted(number: int, frame: object) -> None:
    if sys.stderr is not None:
        sys.stderr.write("onnxfq: error: interrupted\n")
        sys.stderr.flush()
    os._exit(130)

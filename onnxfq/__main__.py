"""The console command `onnxfq`, also `python -m onnxfq`; Ctrl-C during its imports ends in one line."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Import and run the command line; return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler  # a parent may have it ignored
    if is_default:
        # No exception: extension modules turn those into errors of their own. Nothing is written yet.
        signal.signal(signal.SIGINT, _exit_interrupted)
    from onnxfq.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, before)
    return run()


def _exit_interrupted(number: int, frame: object) -> None:
    if sys.stderr is not None:
        sys.stderr.write("onnxfq: error: interrupted\n")
        sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())

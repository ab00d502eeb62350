"""The command line of this run, for records."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

_arguments: ContextVar[Sequence[str]] = ContextVar("arguments", default=())


def keep_arguments(arguments: Sequence[str]) -> None:
    """Note the arguments of the command that runs now."""
    _arguments.set(arguments)


def command_line() -> str:
    """Return the command with its arguments, as a shell takes it."""
    return shlex.join(["onnxfq", *_arguments.get()])

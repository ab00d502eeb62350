"""Files of an interrupted run, from which `--resume` continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from onnxfq.errors import StatisticsError

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal number, as in shells."""


class Resumable(Protocol):
    """Statistics or moments, complete or not."""

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""


Gathered = TypeVar("Gathered", bound=Resumable)


def load_interrupted(load: Callable[[Path], Gathered], path: Path) -> Gathered:
    """Return what `load` reads from `path`. Raises StatisticsError if nothing is missing."""
    found = load(path)
    if found.complete:
        raise StatisticsError(f"{path} is complete, there is nothing to resume; omit --resume")
    return found

"""Progress of long work on standard error: a bar in terminals and notebooks, a line now and then elsewhere.

Whatever runs a model or tries something says so with `announce`, and whoever called decides who hears it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

StageProgress = Callable[[str, int, int | None], None]
"""Called with the stage's name, the number of feeds, weights or runs done, and their total if known."""

EVERY = 10.0
"""Seconds between two plain lines."""

_heard: ContextVar[StageProgress | None] = ContextVar("heard", default=None)


def announce(stage: str, done: int = 0, total: int | None = None) -> None:
    """Tell whoever shows progress what is done now, and how much of how much."""
    heard = _heard.get()
    if heard is not None:
        heard(stage, done, total)


def counting(stage: str, total: int | None = None) -> Callable[[int], None]:
    """Return a function that announces how much of a stage is done."""
    return lambda done: announce(stage, done, total)


class Bar:
    """Progress bar of what runs: how much is done, the time so far, and what is left if that is known."""

    def __init__(self, console: Console) -> None:
        """Create the bar without a stage."""
        from rich.progress import (  # costs as much as a small command that shows nothing
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        left = TimeRemainingColumn(elapsed_when_finished=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, TimeElapsedColumn(), left, console=console, transient=True)
        self._task = self.progress.add_task("start", total=None)

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Record that `done` of `total` are done."""
        if self.progress.tasks[0].description != stage:
            self.progress.reset(self._task, description=stage, total=total)
        self.progress.update(self._task, completed=done, total=total)


class Lines:
    """Progress as plain lines, at most one in `EVERY` seconds; what is quick prints none."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Print lines with `say`."""
        self._say, self._clock = say, clock
        self._stage, self._done, self._first = "start", 0, 0
        self._total: int | None = None
        self._begun = self._last = clock()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Record that `done` of `total` are done."""
        if stage != self._stage:
            self._stage, self._begun, self._first = stage, self._clock(), done
        self._done, self._total = done, total
        self.tick()

    def tick(self) -> None:
        """Print what is done, if the last line is old enough."""
        now = self._clock()
        if now - self._last < EVERY:
            return
        self._last = now
        spent, done, total = now - self._begun, self._done, self._total
        speed = (done - self._first) / spent if spent else 0.0
        known = f" of {total}" if total else ""
        left = f", {(total - done) / speed:.0f} s left" if total and speed else ""
        pace = f", {speed:.2g}/s" if speed else f", {spent:.0f} s"  # nothing came since the stage began
        self._say(f"{self._stage}{f': {done}{known}' if done else ''}{pace}{left}")


@contextmanager
def show_progress(wanted: bool | StageProgress | None) -> Iterator[StageProgress | None]:
    """Let `announce` show progress inside, and yield what hears it; None for nothing.

    Inside of a place that shows it already, all but a function is shown there.

    Args:
        wanted: True to show it; False for nothing; a function that hears it; None to show it where somebody
            looks: in a terminal and in a notebook.
    """
    if callable(wanted):
        with _hear(wanted):
            yield wanted
        return
    if _heard.get() is not None:
        yield _heard.get()
        return
    is_notebook = "ipykernel" in sys.modules
    is_seen = is_notebook or (sys.stderr is not None and sys.stderr.isatty())
    if wanted is False or not (wanted or is_seen):
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal or is_notebook:
        bar = Bar(console)
        with bar.progress, _hear(bar):
            yield bar
        return
    lines, ended = Lines(_print_line), threading.Event()

    def tick() -> None:
        while not ended.wait(EVERY):
            lines.tick()

    threading.Thread(target=tick, daemon=True).start()
    try:
        with _hear(lines):
            yield lines
    finally:
        ended.set()


def _print_line(line: str) -> None:
    print(f"onnxfq: {line}", file=sys.stderr, flush=True)


@contextmanager
def _hear(shown: StageProgress) -> Iterator[None]:
    token = _heard.set(shown)
    try:
        yield
    finally:
        _heard.reset(token)

"""Progress of long stages on standard error: a bar on a terminal, periodic plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

EVERY = 10.0
"""Seconds between two plain lines."""


class _Speed(ProgressColumn):
    """Feeds or weights per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


class Bar:
    """Progress bar per stage: feeds or weights done, their speed, and the time left if the total is known."""

    def __init__(self, console: Console) -> None:
        """Create the bar without a stage."""
        left = TimeRemainingColumn(elapsed_when_finished=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, _Speed(), left, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Record that `done` of `total` feeds or weights are done."""
        if stage not in self._tasks:
            self._tasks[stage] = self.progress.add_task(stage, total=total)
        self.progress.update(self._tasks[stage], completed=done)


class Lines:
    """Progress as plain lines, at most one in `EVERY` seconds; quick stages print none."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Print lines with `say`."""
        self._say, self._clock = say, clock
        self._stage, self._begun, self._last, self._first = "", 0.0, 0.0, 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Record that `done` of `total` feeds or weights are done."""
        now = self._clock()
        if stage != self._stage:
            self._stage, self._begun, self._last, self._first = stage, now, now, done
            return
        if now - self._last < EVERY:
            return
        self._last = now
        speed = (done - self._first) / (now - self._begun)
        known = f" of {total}" if total else ""
        left = f", {(total - done) / speed:.0f} s left" if total and speed else ""
        pace = f", {speed:.2g}/s" if speed else ""  # nothing came since the stage began
        self._say(f"{stage}: {done}{known}{pace}{left}")

"""Progress of long stages on standard error: a bar on a terminal, a plain line now and then elsewhere."""

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
    """Feeds a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


class Bar:
    """A bar a stage, with feeds done, feeds a second and the time that is left where the end is known."""

    def __init__(self, console: Console) -> None:
        """Show nothing yet."""
        left = TimeRemainingColumn(elapsed_when_finished=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, _Speed(), left, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Take note of `done` of `total` feeds."""
        if stage not in self._tasks:
            self._tasks[stage] = self.progress.add_task(stage, total=total)
        self.progress.update(self._tasks[stage], completed=done)


class Lines:
    """The same as lines, at most one in `EVERY` seconds: nothing at all for what is quick."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Say lines with `say`."""
        self._say, self._clock = say, clock
        self._stage, self._begun, self._last, self._first = "", 0.0, 0.0, 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Take note of `done` of `total` feeds."""
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
        self._say(f"{stage}: {done}{known} feeds, {speed:.1f}/s{left}")

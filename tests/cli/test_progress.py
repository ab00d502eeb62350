"""Progress: a bar on a terminal, lines elsewhere, none for what is quick."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest
from rich.console import Console

from onnxfq.cli.console import show_notes
from onnxfq.cli.progress import Bar, Lines


def test_lines_tell_speed_and_what_is_left() -> None:
    """At most one line in ten seconds; without a known end no time that is left."""
    now = [0.0]
    said: list[str] = []
    lines = Lines(said.append, lambda: now[0])
    for done in range(1, 41):
        now[0] += 1.0
        lines("observe", done, 100)
    now[0] += 1.0
    lines("evaluate", 1, None)
    now[0] += 20.0
    lines("evaluate", 41, None)
    assert said == [
        "observe: 11 of 100, 1/s, 89 s left",
        "observe: 21 of 100, 1/s, 79 s left",
        "observe: 31 of 100, 1/s, 69 s left",
        "evaluate: 41, 2/s",
    ]


def test_quick_stages_say_nothing() -> None:
    """Nobody waits for less than ten seconds."""
    said: list[str] = []
    lines = Lines(said.append, lambda: 0.0)
    for done in range(1, 500):
        lines("observe", done, 500)
    assert said == []


def test_the_bar_shows_stage_count_and_total() -> None:
    """Text that a terminal shows while a stage runs."""
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=100))
    with bar.progress:
        bar("observe", 3, 8)
        bar.progress.refresh()
    assert "observe" in stream.getvalue() and "3/8" in stream.getvalue()


def test_notes_have_lines_of_their_own_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that comes while the bar is shown does not end up in the middle of it."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = logging.getLogger("onnxfq")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    show_notes()
    bar = Bar(Console(file=stream, force_terminal=True, width=100))
    with bar.progress:
        bar("observe", 1, 2)
        bar.progress.refresh()
        logger.warning("a note")
        bar("observe", 2, 2)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "onnxfq: note: a note" in re.split(r"[\r\n]+", plain)

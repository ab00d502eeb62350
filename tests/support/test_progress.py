"""Progress: a bar on a terminal, lines elsewhere, none for what is quick."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from types import NoneType

import numpy as np
import pytest
from planted_chain import WIDTH, chain, unequalized
from rich.console import Console

import onnxfq
from onnxfq.cli.console import show_notes
from onnxfq.support import progress
from onnxfq.support.progress import Bar, Lines


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
        "observe: 10 of 100, 1/s, 90 s left",
        "observe: 20 of 100, 1/s, 80 s left",
        "observe: 30 of 100, 1/s, 70 s left",
        "observe: 40 of 100, 1/s, 60 s left",
        "evaluate: 41, 2/s",
    ]


def test_many_quick_stages_say_one_line_in_ten_seconds() -> None:
    """Stages that change all the time, and some that count nothing, have their line too."""
    now = [0.0]
    said: list[str] = []
    lines = Lines(said.append, lambda: now[0])
    for trial in range(12):
        lines(f"repair: {trial}", 0, None)
        now[0] += 4.0
        lines.tick()
    assert said == ["repair: 2, 4 s", "repair: 5, 4 s", "repair: 8, 4 s", "repair: 11, 4 s"]


def test_silence_ends_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock speaks for a stage that says nothing for long, and stops at the end."""
    monkeypatch.setattr(progress, "EVERY", 0.01)
    told = threading.Event()
    monkeypatch.setattr(progress, "_print_line", lambda line: (said.append(line), told.set()))
    said: list[str] = []
    with progress.show_progress(True):
        progress.announce("build", 0, 3)
        assert told.wait(20)
    assert said[0].startswith(("build, ", "start, "))
    count = len(said)
    progress.announce("build", 1, 3)
    assert len(said) == count


@pytest.mark.parametrize(
    ("wanted", "is_terminal", "kind"),
    [
        (None, False, NoneType),
        (None, True, Bar),
        (True, False, Lines),
        (True, True, Bar),
        (False, True, NoneType),
    ],
)
def test_who_sees_it(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, is_terminal: bool, kind: type
) -> None:
    """By default a terminal shows a bar and a pipe nothing; what is asked for is shown in both."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress.show_progress(wanted) as shown:
        assert isinstance(shown, kind)


def test_inner_calls_are_heard_where_the_outer_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that another one calls opens no second bar, and its own listener comes first."""
    heard: list[str] = []
    with progress.show_progress(lambda stage, done, total: heard.append(stage)) as outer:
        for wanted in (None, True):
            with progress.show_progress(wanted) as inner:
                assert inner is outer
                progress.announce("inner")
        with progress.show_progress(lambda stage, done, total: heard.append(f"own {stage}")):
            progress.announce("inner")
    assert heard == ["inner", "inner", "own inner"]


@pytest.mark.whole
def test_every_function_that_runs_tells_what_it_does() -> None:
    """Each tells the remedies it tries, with the work that is left, or the states and trials."""
    heard: list[tuple[str, int, int | None]] = []
    options = onnxfq.RunOptions(progress=lambda *told: heard.append(told))
    proto, x = chain((3,)), np.random.default_rng(0).normal(size=(32, WIDTH)).astype(np.float32)
    result = onnxfq.quantize(proto, x, recipe=unequalized(), options=options)
    repairs = [told for told in heard if told[0].startswith("repair: ")]
    assert {"repair: calibrator", "repair: smooth"} <= {stage for stage, *_ in repairs}
    assert all(total is not None and done <= total for _, done, total in repairs)
    for function, given, wanted in (
        (onnxfq.sensitivity, (proto, x), "rank"),
        (onnxfq.evaluate, (proto, result.qdq, x), "evaluate"),
        (onnxfq.compare, (result.qdq, x), "compare"),
    ):
        heard.clear()
        function(*given, options=options)
        counts = [told for told in heard if told[0] == wanted]
        assert counts[-1][1] == counts[-1][2] and counts[0][1] < counts[-1][1], wanted
    unrepaired = onnxfq.AccuracyTarget(repair=None)
    wrong = onnxfq.quantize(proto, x, recipe=unequalized(), accuracy=unrepaired).qdq
    heard.clear()
    onnxfq.diagnose(wrong, data=x, options=options)
    assert heard and {stage for stage, *_ in heard} == {"repair"}


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

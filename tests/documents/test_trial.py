"""Trials as a table: what each one says, in lines that a terminal shows whole."""

from __future__ import annotations

import pytest

from onnxfq.documents.trial import Trial, trial_lines
from onnxfq.support import tables

LONG = "it takes about 9.4 s more, beyond the budget; --repair thorough tries it"

TRIALS = [
    Trial(remedy="equalize", why=LONG),
    Trial(remedy="calibrator", is_kept=True, before=-3.04, after=116.5, seconds=4.62, details=("by mse",)),
    Trial(remedy="smooth", is_needed=False, why="the recipe names the smoothing"),
    Trial(remedy="protected", before=16.6, after=16.7, why="it must gain 0.5 dB", details=(LONG, "two")),
    Trial(remedy="biases", is_kept=True, seconds=1234.5),
]


def test_each_trial_has_a_row() -> None:
    """Cells of a column begin under its heading; a remedy that was not needed has no row."""
    *lines, legend = trial_lines(TRIALS)
    assert legend.startswith("unseen dB  ")
    heading = lines[0]
    places = [heading.index(name) for name in ("remedy", "result", "unseen dB", "cost", "seconds")]
    rows = [line for line in lines[1:] if not line.startswith(" ")]
    cells = [[row[at:].split("  ")[0] for at in places] for row in rows]
    assert cells == [
        ["equalize", "left", "", "", "0.0"],
        ["calibrator", "kept", "-3.0 -> 116.5", "none", "4.6"],
        ["protected", "left", "16.6 -> 16.7", "", "0.0"],
        ["biases", "kept", "", "none", "1234.5"],
    ]


def test_all_is_said_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons and details are there whole, word by word, and no line is longer than a terminal."""
    monkeypatch.setattr(tables, "measure_room", lambda stream: 80)
    lines = trial_lines(TRIALS)
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    for trial in TRIALS:
        assert all(text in words for text in trial.texts if trial.is_needed)
    assert "the recipe names the smoothing" not in words


def test_a_long_name_is_not_broken() -> None:
    """A name can be copied from the table, however long it is."""
    name = "/model/" + "layer-" * 20
    assert any(name in line for line in trial_lines([Trial(remedy="protected", why=f"the worst, {name}")]))


@pytest.mark.parametrize("trials", [[], [TRIALS[2]]])
def test_nothing_tried_is_no_table(trials: list[Trial]) -> None:
    """Without a trial there is no heading either."""
    assert trial_lines(trials) == []

"""Answers to mistakes: the page has what the command line says, in one line, and nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from command_server import CommandServer
from pages import ROOT


@pytest.fixture
def mistakes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that makes the mistakes."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "mistakes", raising=False)
    import mistakes

    return mistakes


@pytest.mark.whole
def test_the_page_is_what_is_answered(mistakes: Any, tmp_path: Path, server: CommandServer) -> None:
    """Each of 40 mistakes and more fails with the line of the page, and leaves the folder as it was."""
    mistakes.prepare(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    faults = []

    def run(words: list[str]) -> tuple[int, str]:
        done = server.run(words, tmp_path)
        faults.append(done.fault)
        return done.code, done.out + done.err

    answers = mistakes.ask(run, tmp_path)
    page = (ROOT / "benchmarks" / "results" / "mistakes.md").read_text(encoding="utf-8")
    assert len(answers) >= 40 and answers == mistakes.read_page(page)
    assert not any(faults) and all(code in (1, 2) for _, code, _ in answers.values())
    assert all(said.startswith("onnxfq: error: ") and "\n" not in said for *_, said in answers.values())
    # Python keeps the code of the user's module.
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before

"""Tables: columns one below the other, and in a line of the terminal where names can be shortened."""

from __future__ import annotations

import pytest

from onnxfq.support import tables as text_table
from onnxfq.support.tables import table_lines

ROWS = [("tensor", "SQNR dB"), ("/model/layers.0/attention/qkv/MatMul_output_0", "31.2"), ("x", "5.0")]


def test_columns() -> None:
    """Without a terminal nothing is lost, whatever the length."""
    long = "n" * 3000
    assert table_lines([(long, "1"), ("x", "2")], names=(0,)) == [f"{long}  1", f"x{' ' * 2999}  2"]


@pytest.mark.parametrize("room", [40, 30])
def test_names_lose_their_middle(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal every line fits, and a name keeps its beginning and its end."""
    monkeypatch.setattr(text_table, "_room", lambda: room)
    lines = table_lines(ROWS, names=(0,))
    assert max(map(len, lines)) == room - 0 and lines[1].startswith("/model/") and "put_0  31.2" in lines[1]
    assert lines[2].split() == ["x", "5.0"]


def test_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any room names keep some characters and other columns all."""
    monkeypatch.setattr(text_table, "_room", lambda: 10)
    lines = table_lines(ROWS, names=(0,))
    assert lines[1].split() == ["/model/..utput_0", "31.2"] and lines[0].split() == ["tensor", "SQNR", "dB"]
    assert table_lines(ROWS) == table_lines(ROWS, names=()) and len(table_lines(ROWS)[1]) > 40

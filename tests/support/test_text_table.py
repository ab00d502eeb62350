"""Tables: columns one below the other, and in the width of the terminal."""

from __future__ import annotations

import pytest

from onnxfq.support import tables
from onnxfq.support.plurals import agree_numbers
from onnxfq.support.tables import table_lines, wrap_lines

ROWS = [("tensor", "SQNR dB"), ("/model/layers.0/attention/qkv/MatMul_output_0", "31.2"), ("x", "5.0")]


def test_columns() -> None:
    """Without a terminal nothing is lost, whatever the length."""
    long = "n" * 3000
    assert table_lines([(long, "1"), ("x", "2")], names=(0,)) == [f"{long}  1", f"x{' ' * 2999}  2"]


@pytest.mark.parametrize("room", [42, 32])
def test_names_go_over_lines(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal every line fits, and a name ends its lines behind a dot or a slash."""
    monkeypatch.setattr(tables, "measure_room", lambda stream: room)
    lines = table_lines(ROWS, names=(0,))
    assert max(map(len, lines)) <= room
    assert "".join(line.split("  ")[0] for line in lines[1:-1]) == ROWS[1][0]
    assert lines[-1].split() == ["x", "5.0"]


def test_words_go_over_lines_before_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are copied: they are whole as long as the other columns have room to give."""
    monkeypatch.setattr(tables, "measure_room", lambda stream: 40)
    rows = [("tensor", "what"), ("layers.0.weight", "the range is far too wide for its values")]
    lines = table_lines(rows, names=(0,))
    assert lines[1].startswith("layers.0.weight  the range") and all(len(line) <= 40 for line in lines)
    assert " ".join(line[17:] for line in lines[1:]) == rows[1][1]


def test_an_interval_is_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line ends inside of an interval, in a table and in a sentence."""
    monkeypatch.setattr(tables, "measure_room", lambda stream: 30)
    rows = [("output", "SQNR dB", "90%"), ("save_infer_model/scale_0", "-3.2", "-11.0 to 34.3")]
    told = [
        *table_lines(rows, names=(0,)),
        *wrap_lines("SQNR       12 dB (-11.0 to 34.3) at y").split("\n"),
    ]
    assert all(len(line) <= 30 for line in told) and sum("-11.0 to 34.3" in line for line in told) == 2


def test_a_word_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any room words have a line each."""
    monkeypatch.setattr(tables, "measure_room", lambda stream: 10)
    words = "".join("".join(table_lines(ROWS, names=(0,))).split())
    assert sorted(words) == sorted("".join("".join(row) for row in ROWS).replace(" ", ""))


@pytest.mark.parametrize(
    ("line", "indent"),
    [
        ("note       " + "word " * 9, 11),
        ("calibrated " + "word " * 9, 11),
        ("low SQNR   " + "word " * 9, 11),
        ("           " + "word " * 9, 11),
        ("not in the model: " + "word " * 9, 2),
    ],
)
def test_sentences_stay_behind_their_word(line: str, indent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a line that is too long stands below its sentence."""
    monkeypatch.setattr(tables, "measure_room", lambda stream: 40)
    first, *others = wrap_lines(line.rstrip()).split("\n")
    assert others and " ".join([first, *(one.strip() for one in others)]) == line.rstrip()
    assert {len(one) - len(one.lstrip()) for one in others} == {indent}


@pytest.mark.parametrize(
    ("plural", "text"),
    [
        ("1 samples were run", "1 sample was run"),
        ("11 samples, 0.1 samples and 1/1 samples", "11 samples, 0.1 samples and 1/1 samples"),
        ("1 local function(s) inlined, 3 weight(s)", "1 local function inlined, 3 weights"),
        ("1 Constant node(s) and 1 causes", "1 Constant node and 1 cause"),
        ("1 tensor(s) have another shape", "1 tensor has another shape"),
        ("float part fp16, 1 nodes stay in fp32", "float part fp16, 1 node stays in fp32"),
    ],
)
def test_nouns_agree_with_their_number(plural: str, text: str) -> None:
    """One is singular, as is its verb; a part of a number is none."""
    assert agree_numbers(plural) == text

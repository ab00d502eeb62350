"""Documents: records of known fields, read from JSON and YAML, with every fault in one line."""

from __future__ import annotations

import json
import math

import pydantic
import pytest

from onnxfq.errors import PlanError
from onnxfq.support.records import Record, join_lines, parse, read_document, write_document


class Inner(Record):
    """A record inside another."""

    width: int
    height: int = 1


class Outer(Record):
    """A record with one inner and a list of them."""

    name: str
    ratio: float = 1.0
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()


FULL = Outer(name="ä", ratio=0.1, inner=Inner(width=3), many=(Inner(width=4, height=5),))


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
def test_what_is_written_is_read(tmp_path, suffix):
    """JSON is YAML: a written document reads back equal under each suffix."""
    path = tmp_path / f"a.{suffix}"
    write_document(path, FULL)
    assert read_document(path, Outer, PlanError) == FULL
    assert json.loads(path.read_text(encoding="utf-8"))["ratio"] == 0.1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_non_finite_numbers_survive(tmp_path, value):
    """JSON has no infinities: they are written as strings and come back as numbers."""
    write_document(tmp_path / "a.json", Outer(name="a", ratio=value))
    assert read_document(tmp_path / "a.json", Outer, PlanError).ratio == pytest.approx(value, nan_ok=True)


def test_records_are_frozen():
    """Values go forward: a record is never changed."""
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        FULL.name = "b"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "src: name: Field required"),
        ({"name": 3}, "src: name: Input should be a valid string"),
        ({"name": "a", "nam": 1}, "src: nam: no such field; nearest: name"),
        ({"name": "a", "inner": {"width": 1, "widht": 2}}, "src: inner.widht: no such field; nearest: width"),
        (
            {"name": "a", "many": [{"width": 1, "xyz": 2}]},
            "src: many.0.xyz: no such field; known: height, width",
        ),
        ([1], "src: must be a mapping of fields, got [1]"),
        (None, "src: must be a mapping of fields, got None"),
        ({"name": "a", "inner": 5}, "src: inner: must be a mapping of fields, got 5"),
    ],
)
def test_faults_name_source_and_field(content, words):
    """The first fault is one line: source, path of the field, rule, and the nearest known field."""
    with pytest.raises(PlanError) as caught:
        parse(content, Outer, PlanError, "src")
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"{", "a.json is not valid json: Expecting property name"),
        ("a.yaml", b"a: [1\nb: 2", "a.yaml is not valid yaml: while parsing a flow"),
        ("a.yaml", b"a: {b: 1, b: 2}", "field 'b' appears twice, and only one"),
        ("a.json", b'{"a": {"b": 1, "b": 2}}', "not valid json: 'b' appears twice"),
        ("a.json", b"[" * 100_000, "not valid json: maximum recursion depth"),
        ("a.yaml", b"[" * 100_000, "not valid yaml: maximum recursion depth"),
        ("a", b"a: {", "a is not valid YAML"),
        ("a.json", b"\xff\xfe", "cannot read "),
        ("a.yaml", b"", "must be a mapping of fields, got None"),
    ],
)
def test_broken_files(tmp_path, name, content, words):
    """A file that is not a document is one line that names it."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PlanError) as caught:
        read_document(tmp_path / name, Outer, PlanError)
    assert words in str(caught.value) and str(tmp_path / name) in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    """A path that is not there, or is a folder, is said so."""
    with pytest.raises(PlanError, match="no such file: .*b.json; check the path"):
        read_document(tmp_path / "b.json", Outer, PlanError)
    with pytest.raises(PlanError, match="cannot read .*: it is a folder, not a file"):
        read_document(tmp_path, Outer, PlanError)


def test_one_line():
    """Any run of white space is one blank."""
    assert join_lines(" a\n\t b\r\nc ") == "a b c"

"""Plain English: phrases that read as translated stay out of docs, help, errors and docstrings."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import onnxfq
from onnxfq.cli.main import COMMANDS, build_app

ROOT = Path(__file__).parent.parent
PAGES = (
    *sorted((ROOT / "docs").glob("*.md")),
    *(
        ROOT / name
        for name in """README.md CONTRIBUTING.md SECURITY.md ROADMAP.md benchmarks/README.md
        benchmarks/results.md models/README.md""".split()
    ),
    *sorted((ROOT / "examples").rglob("README.md")),
)
CODE = ""
"""Folder of the package whose docstrings and errors are read."""

C_SUFFIXES = (".cc", ".h", ".cu", ".cuh")
ROOMS = {
    "onnxfq": 17,
    "tests": 120,
    "custom_ops": 0,
    "benchmarks": 0,
    "examples": 0,
    "models": 0,
    "scripts": 1,
    "Makefile": 0,
    ".ci/run": 1,
    "mkdocs.yml": 0,
    "pyproject.toml": 0,
}
"""Where comments are read, and how many hits are left there; the numbers only go down."""

OPENERS = ("of", "where", "so", r"what(?!.*\?$)", "those that", "those of", "that of")
"""Words that open no sentence; a question may begin with What."""

BANNED = (
    r"hangs? (?:on|neither|between|from)",
    r"(?:has|have|had) not(?=[.,;:)]| to | and | or |$)",
    r"(?<!there )(?:is|are|was|were) no(?! longer)",
    "that of",
    "those of",
    "but for",
    "anew",
    "thereby",
    "told",
    "tells? of",
    "without a word",
    "for ever",
    "besides?",
    r"(?:is|are|was|were) to be \w+(?:ed|en)",
    "let expect",
    "(?:may|can) be given again",
    "brought to one size",
    "with whom",
    "for whom",
    "to and fro",
    "ends? over",
    r"of (?:its|their|your|one's) own(?! (?!and|or|for|in|is|at)\w)",
    "all the same",
    r"(?<=, )for (?:it|they|its|their|this|there|nothing|no|only|what)",
    "in place of what",
    "one right",
    "as it comes",
    "go(?:es|ne)? on from",
)
"""Phrases that are not plain English, between word boundaries, in any case."""

FOUND = re.compile(
    "|".join([rf"^(?:{'|'.join(OPENERS)})\b", *(rf"\b(?:{one})(?!\w)" for one in BANNED)]), re.I
)
QUOTED = re.compile(r"^- \S+, .*?: (?:nothing to quantize|tensor ').*$", re.MULTILINE)
"""Lines of benchmarks/results.md that quote errors."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of Markdown or of a docstring, without code; a cell of a table is one."""
    text = re.sub(r"^```.*?^```|^    [^\n]*$", "", QUOTED.sub("", text), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"``?[^`]+``?", "X", text))
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-|#] |\d\. |\|)|\|", text):
        joined = re.sub(r"^(?:[-#*]+|\d\.)\s+", "", " ".join(paragraph.split())).replace("**", "")
        yield from (one for one in re.split(r"(?<=[.?!])\s+", joined) if one)


def offences(text: str) -> list[str]:
    """Return the sentences of `text` that hold a banned phrase."""
    # A heading of one or two words over a column is no sentence.
    return [one for one in sentences(text) if len(one.split()) > 2 and FOUND.search(one)]


def help_texts() -> Iterator[str]:
    """Yield what `--help` says of the command, every subcommand and every parameter."""
    root = typer.main.get_command(build_app(COMMANDS))
    for command in (root, *root.commands.values()):  # type: ignore[attr-defined]
        yield command.help or ""
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file of Python."""
    return ast.parse(path.read_text(encoding="utf-8"))


def literals(node: ast.AST) -> Iterator[str]:
    """Yield the strings of `node`, those with fields as one string."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    elif isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    else:
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def texts_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, of the string behind a constant, and of every error."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, inspect.cleandoc(node.value.value)
        elif isinstance(node, ast.Raise):
            yield from ((node.lineno, text) for text in literals(node))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    """No page has a banned phrase."""
    assert not offences(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    """The sentences of a page, cells of four words or less apart, have at most 18 words in the mean."""
    counts = [len(one.split()) for one in sentences(page.read_text(encoding="utf-8"))]
    longer = [count for count in counts if count > 4]
    assert longer and sum(longer) <= 18 * len(longer)


@pytest.mark.sample
def test_help() -> None:
    """No help text has a banned phrase."""
    assert not [bad for text in help_texts() for bad in offences(text)]


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment; those on lines in a row are one."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        with path.open("rb") as file:
            tokens = [t for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT]
        lines = [(token.start[0], token.string) for token in tokens]
    else:
        mark = re.compile(r"//.*" if path.suffix in C_SUFFIXES else r"(?:^|\s)#+ .*")
        found = ((n, mark.search(line)) for n, line in enumerate(content.splitlines(), 1))
        lines = [(n, match[0]) for n, match in found if match]
    first, last, text = 0, -1, ""
    for number, line in [*lines, (-1, "")]:
        words = line.strip().lstrip("#/< ")
        if number == last + 1:
            last, text = number, f"{text} {words}"
        else:
            if text:
                yield first, text
            first, last, text = number, number, words


def files_of(room: str) -> list[Path]:
    """Return the files of a room that hold comments of ours."""
    if not (ROOT / room).is_dir():
        return [ROOT / room]
    kinds = {".py", ".sh", ".cmake", *C_SUFFIXES}
    paths = sorted((ROOT / room).rglob("*"))
    return [
        path
        for path in paths
        if (path.suffix in kinds or path.name == "CMakeLists.txt") and path.name != Path(__file__).name
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_comments_and_other_code(room: str) -> None:
    """Comments, and docstrings and errors outside the package, have no more hits than their room may."""
    files = files_of(room)
    assert files
    hits = {
        f"{path.relative_to(ROOT)}:{line}": bad
        for path in files
        for line, text in (
            *comments(path),
            *(texts_of_code(path) if path.suffix == ".py" and room != "onnxfq" else ()),
        )
        for bad in offences(text)
    }
    assert len(hits) <= ROOMS[room], hits


def test_code() -> None:
    """No docstring and no error has a banned phrase."""
    package = Path(onnxfq.__file__).parent
    found = {
        f"{path.relative_to(package)}:{line}": bad
        for path in sorted((package / CODE).rglob("*.py"))
        for line, text in texts_of_code(path)
        for bad in offences(text)
    }
    assert not found


PERCENT = re.compile(r"[\dX] %(?![\w%(])")
"""A percent sign apart from its number; X is a field of a string."""


def test_a_percent_sign_follows_its_number() -> None:
    """Pages, and the strings and docstrings of the package and the examples, have one form: `61%`."""
    texts = [(str(page), page.read_text(encoding="utf-8")) for page in PAGES]
    for path in (*files_of("onnxfq"), *files_of("examples")):
        if path.suffix == ".py":
            texts += [(str(path), text) for text in literals(parsed(path))]
    assert not {(where, match[0]) for where, text in texts for match in PERCENT.finditer(text)}


@pytest.mark.parametrize(
    "text",
    [
        "What a feed gives hangs neither on its neighbours nor on threads.",
        "Read it. Of these\ntwo remain.",
        "a\n\n- So it is",
    ],
)
def test_phrases_are_found(text: str) -> None:
    """A banned phrase is found across lines, in lists and at the beginning of a sentence."""
    assert offences(text)

"""Plain English: phrases that read as translated stay out of docs, help, errors and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
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
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "benchmarks/README.md",
            "models/README.md",
        )
    ),
    *sorted((ROOT / "examples").glob("*/README.md")),
)
CODE = ""
"""Folder of the package whose docstrings and errors are read."""

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
"""Lines of docs/results.md that quote errors."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of Markdown or of a docstring, without code; a cell of a table is one."""
    text = re.sub(r"^```.*?^```|^    .*$", "", QUOTED.sub("", text), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"``?[^`]+``?", "X", text))
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-|#] |\d\. |\|)|\|", text):
        joined = re.sub(r"^(?:[-#*]+|\d\.)\s+", "", " ".join(paragraph.split())).replace("**", "")
        yield from (one for one in re.split(r"(?<=[.?!])\s+", joined) if one)


def offences(text: str) -> list[str]:
    """Return the sentences of `text` that hold a banned phrase."""
    return [one for one in sentences(text) if FOUND.search(one)]


def help_texts() -> Iterator[str]:
    """Yield what `--help` says of the command, every subcommand and every parameter."""
    root = typer.main.get_command(build_app(COMMANDS))
    for command in (root, *root.commands.values()):  # type: ignore[attr-defined]
        yield command.help or ""
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)


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
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, inspect.cleandoc(node.value.value)
        elif isinstance(node, ast.Raise):
            yield from ((node.lineno, text) for text in literals(node))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    """No page has a banned phrase."""
    assert not offences(page.read_text(encoding="utf-8"))


def test_help() -> None:
    """No help text has a banned phrase."""
    assert not [bad for text in help_texts() for bad in offences(text)]


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

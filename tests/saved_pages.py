"""Python in pages that a browser saved as text: the blocks of a page, and what the page prints after each.

Such a text has prompts, blocks of one line, or names that slid to the next line. Each form has a reader here.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass

STARTS = ("=", "import ", "from ", "def ", "for ", "return ", "print(", "plot_", "#", "class ")
SLID = re.compile(r"([\w\[\]]+(?:, \w+)*)\s*(.*)", re.DOTALL)
LAST_SLID = re.compile(r"(.*\)) (\w+(?:, \w+)*)")


@dataclass(frozen=True)
class Block:
    """Code, and the text that the page shows as its output, "" for none."""

    code: str
    printed: str = ""


def read_prompts(text: str) -> list[Block]:
    """Return the examples behind `>>>`, one block for each that begins with an import or a comment.

    Their output may have the page's next words at its end.
    """
    blocks: list[list[doctest.Example]] = []
    for example in doctest.DocTestParser().get_examples(
        re.sub(r"^\.\.\.$", "... ", text, flags=re.MULTILINE)
    ):
        if not blocks or example.source.startswith(("import ", "#")):
            blocks.append([])
        blocks[-1].append(example)
    return [
        Block("".join(example.source for example in block), "".join(example.want for example in block))
        for block in blocks
    ]


def read_module(text: str) -> list[Block]:
    """Return the longest run of lines from the first import on that is Python."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("import "))
    for last in range(len(lines), first, -1):
        code = "\n".join(lines[first:last])
        if _is_python(code):
            return [Block(code)]
    raise AssertionError("no Python in the page")


def read_one_line(text: str) -> list[Block]:
    """Return the fenced blocks of Python, whose lines became one line, with the fenced output after each."""
    found = re.findall(r"```python (.*?)```(?:[^`]*```text (.*?)```)?", text, re.DOTALL)
    return [Block(_split_statements(code), printed.strip()) for code, printed in found]


def _split_statements(line: str) -> str:
    depth, out = 0, ""
    for piece in re.split(r"(?<= )(?=# |\w+ = |print\()", line):
        out += ("\n" if depth == 0 else "") + piece
        depth += sum(piece.count(c) for c in "([") - sum(piece.count(c) for c in ")]")
    return out.strip()


def read_slid_names(text: str) -> list[Block]:
    """Return blocks whose assigned names slid behind their expression: "= 1 + 1", then "x = 2", then "y"."""
    blocks: list[Block] = []
    for code, prose in _parts_of(text.splitlines()):
        words = "\n".join(code)
        blocks.append(Block(words, prose if "print(" in words else ""))
    return blocks


def _parts_of(lines: list[str]) -> Iterator[tuple[list[str], str]]:
    """Yield runs of code lines, each with the line of prose after it."""
    code: list[str] = []
    pending, depth = "", 0
    for line in lines:
        if not (pending or not line.strip() or line.startswith(STARTS) or _closes(code)):
            if any(code):
                yield code, line
            code, depth = [], 0
            continue
        slid = SLID.fullmatch(line.strip()) if pending else None
        rest = line.strip()
        if slid is not None:
            code.append("    " * depth + f"{slid[1]} = {pending}")
            pending, rest = "", slid[2]
            if not rest:
                continue
        if rest.startswith("="):
            last = LAST_SLID.fullmatch(rest[1:].strip())
            if last is None:
                pending = rest[1:].strip()
                continue
            rest = f"{last[2]} = {last[1]}"
        if depth == 2 and (not rest or rest.startswith("#")):
            depth = 1  # an empty line or a comment ends a loop
        code.append("    " * depth + rest if rest else "")
        depth += rest.endswith(":")
        depth = 0 if rest.startswith("return ") else depth
    if any(code):
        yield code, ""


def _closes(code: list[str]) -> bool:
    """Return whether a parenthesis is still open."""
    text = "\n".join(code)
    return text.count("(") > text.count(")")


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True

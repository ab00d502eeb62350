"""Plain text in the width of a terminal: tables, and lines of a word and a sentence."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from itertools import zip_longest
from typing import TextIO

room: ContextVar[float | None] = ContextVar("room", default=None)
"""Characters of a line that a command prints; None to measure standard output at the time of use."""

_MARGIN = 2
"""Characters by which some callers indent tables."""

_WORDS = re.compile(r" *[^ ]+")
_INTERVALS = re.compile(r" *\(?[-\d.e+]+ to [-\d.e+]+[^ ]*| *[^ ]+")
_NAMES = re.compile(r"[^./:_, ]*[./:_, ]+|[^./:_, ]+")
"""Parts of a cell between which a line may end; within an interval only if nothing else suffices."""

_KEYED = re.compile(r"(?:calibrated|not needed|float part) | *\S+(?: \S+)? {2,}| +")
"""Begin of a line before its sentence: a padded word, or an indent."""


def measure_room(stream: TextIO | None) -> float:
    """Return the characters of a line of `stream` if that is a terminal; programs get lines of any length."""
    is_terminal = stream is not None and stream.isatty()  # None if the caller closed it
    return shutil.get_terminal_size().columns if is_terminal else float("inf")


def table_lines(rows: Sequence[Sequence[str]], names: Collection[int] = ()) -> list[str]:
    """Return the rows with aligned columns, a line each unless the terminal is too narrow.

    Args:
        rows: cells of each row; all rows have the same number of cells.
        names: columns whose cells end a line behind a dot or a slash too, and only if that of others between
            words does not suffice.
    """
    columns = range(len(rows[0]))
    most = [max(len(row[i]) for row in rows) for i in columns]
    for words in (_INTERVALS, _WORDS):
        cells = [
            [(_NAMES if i in names and row is not rows[0] else words).findall(row[i]) for i in columns]
            for row in rows
        ]
        widths, over = most.copy(), sum(most) + 2 * (len(most) - 1) - _room() + _MARGIN
        least = [max(len(part.strip()) for row in cells for part in row[i] or [""]) for i in columns]
        for some in ([i for i in columns if i not in names], names):
            while over > 0 and any(widths[i] > least[i] for i in some):
                widths[max((i for i in some if widths[i] > least[i]), key=lambda i: widths[i])] -= 1
                over -= 1
        if over <= 0:
            break
    lines = []
    for row in cells:
        broken = [_fill(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*broken, fillvalue=""):
            lines.append("  ".join(part.ljust(w) for part, w in zip(parts, widths, strict=True)).rstrip())
    return lines


def wrap_lines(text: str) -> str:
    """Return `text` with lines that are too long for the terminal broken between words.

    The rest stands below the sentence behind the first word, as `note       a sentence` has one.
    """
    return "\n".join(line for long in text.split("\n") for line in _wrap_line(long))


def _wrap_line(line: str) -> list[str]:
    width = _room()
    if len(line) <= width:
        return [line]
    head = _KEYED.match(line)
    return _fill(_INTERVALS.findall(line), int(width), head.end() if head and head.end() < width / 2 else 2)


def _fill(parts: Sequence[str], width: int, indent: int = 0) -> list[str]:
    """Return lines of at most `width` characters, each of some parts; a longer part has its own line."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append(" " * indent + part.lstrip())
        else:
            lines[-1] += part
    return lines


def _room() -> float:
    known = room.get()
    return measure_room(sys.stdout) if known is None else known

"""Tables as plain text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

_SHORTEST = 16
"""Characters that a shortened name keeps, as far as the terminal has room at all."""


def table_lines(rows: Sequence[Sequence[str]], names: Collection[int] = ()) -> list[str]:
    """Return a line for each of `rows`, all of one length, with their columns one below the other.

    names: columns that lose the middle of what is too long for a line of the terminal; what is not printed to
    a terminal keeps all of it.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    over = sum(widths) + 2 * (len(widths) - 1) - _room()
    while over > 0 and any(widths[i] > _SHORTEST for i in names):
        widest = max(names, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1
    cells = [[_shorten(c, w) for c, w in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def _room() -> float:
    """Return the characters of a line of the terminal; without one there is no end."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None where the caller closed it
    return shutil.get_terminal_size().columns if terminal else float("inf")


def _shorten(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 2) // 2
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"

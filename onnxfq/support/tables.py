"""Plain-text tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

_SHORTEST = 16
"""Least width to which names are shortened for a narrow terminal, in characters."""


def table_lines(rows: Sequence[Sequence[str]], names: Collection[int] = ()) -> list[str]:
    """Return one line per row, with aligned columns.

    Args:
        rows: cells of each row; all rows have the same number of cells.
        names: columns whose cells lose their middle if a line is too long for the terminal; without a
            terminal nothing is shortened.
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
    """Return the width of the terminal in characters; infinite without a terminal."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None if the caller closed it
    return shutil.get_terminal_size().columns if terminal else float("inf")


def _shorten(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 2) // 2
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"

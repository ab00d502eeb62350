"""Characters of a line of text that a recognizer reads, by the edit distance."""

from __future__ import annotations

import numpy as np

METRIC = "characters read"


def read(outputs: list[np.ndarray], letters: list[str]) -> str:
    """Return the text of the first output [1, T, letters + 2], blank first and space last (greedy CTC)."""
    found = outputs[0][0].argmax(-1)
    changed = np.flatnonzero(np.diff(found, prepend=-1))
    table = ["", *letters, " "]
    return "".join(table[found[at]] for at in changed)


def distance(a: str, b: str) -> int:
    """Return the least number of characters to insert, delete or replace."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (one != other))
    return row[-1]


def score(outputs: list[np.ndarray], truth: tuple[str, list[str]]) -> list[tuple[float, float]]:
    """Return the characters of the line less the edits, and their number. `truth`: text, letters."""
    text, letters = truth
    return [(float(max(0, len(text) - distance(read(outputs, letters), text))), float(len(text)))]

"""`make_error_rate`: word and character error rates of class scores along time, read greedily by CTC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.metrics.metric import Arrays, Mean, Metric, pair_rows
from onnxfq.support.reading import read_text

_SCORES = "an output of class scores [rows, time, classes]"


def read_lines(path: Path) -> NDArray[Any]:
    """Return the lines of a file as texts, empty ones too. Raises UnicodeDecodeError for other than UTF-8."""
    return np.asarray(read_text(path).removesuffix("\n").split("\n"), object)


def make_error_rate(alphabet: Sequence[str], split: Callable[[str], Sequence[str]]) -> Metric:
    """Return the metric of texts in an alphabet: edits over all parts of the labels, 0 for equal texts.

    Texts are read greedily: the largest class at each time, equal neighbours once, without blanks (Graves et
    al., Connectionist Temporal Classification, ICML 2006). Edits are counted by Levenshtein.

    Args:
        alphabet: symbol of each class; an empty one is the blank, the first class where none is.
        split: returns the parts of a text that are compared: its words, or its characters.
    """
    symbols = [*alphabet] if "" in alphabet else ["", *alphabet]

    def measure(outputs: Iterator[Arrays], labels: Any) -> Mean:
        counts: list[tuple[float, float]] = []
        for scores, text in pair_rows(outputs, labels, 3, _SCORES):
            if scores.shape[-1] != len(symbols):
                raise DataError(
                    f"the output has {scores.shape[-1]} classes, and the alphabet {len(symbols)} with the "
                    "blank; give a symbol a line"
                )
            read = "".join(symbols[place] for place, _ in groupby(scores.argmax(-1).tolist()))
            wanted = split(str(text))
            counts.append((count_edits(split(read), wanted), len(wanted)))
        return Mean.of(counts)

    return measure


def count_edits(made: Sequence[str], wanted: Sequence[str]) -> int:
    """Return the fewest insertions, deletions and replacements from one sequence to the other."""
    row = list(range(len(wanted) + 1))
    for number, part in enumerate(made, 1):
        before, row = row, [number]
        for place, other in enumerate(wanted):
            row.append(min(before[place] + (part != other), before[place + 1] + 1, row[place] + 1))
    return row[-1]

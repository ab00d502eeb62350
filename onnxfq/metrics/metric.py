"""`Metric`: a figure of a task from the outputs of a model; `Mean`: one with what each row adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.numerics.intervals import Interval, ratio_reach

Arrays = Mapping[str, NDArray[Any]]
Metric = Callable[[Iterator[Arrays], Any], float]
"""Takes the outputs of each sample in order, and the labels of their rows or, without labels, the samples."""

TAKES = ": it gets an iterator over outputs, a {name: array} for each sample, and labels"
"""The same for messages about a function of the user."""


@dataclass(frozen=True)
class NamedMetric:
    """A metric by name.

    Attributes:
        measure: the function; its second argument are the labels, or else the samples.
        labels: what it needs of them, for messages; empty if it reads the samples.
        read: makes labels of a file; None for those that `--labels` reads for classes.
        counts_errors: whether lower is better.
    """

    measure: Metric
    labels: str = ""
    read: Callable[[Path], NDArray[Any]] | None = None
    counts_errors: bool = False


class Mean(float):
    """A metric that a mean over rows decides, with what each of them adds.

    Attributes:
        rows: top and bottom of each, [rows, 2]; the mean is all tops over all bottoms.
        finish: makes the metric of the mean, and rises with it.
    """

    rows: NDArray[np.float64]
    finish: Callable[[float], float]

    @classmethod
    def of(cls, rows: Iterable[tuple[float, float]], finish: Callable[[float], float] = float) -> Mean:
        """Return the metric of rows; without any bottom their mean is 0."""
        pairs = np.array([*rows], np.float64).reshape(-1, 2)
        top, bottom = pairs.sum(axis=0)
        made = cls(finish(float(top / bottom) if bottom else 0.0))
        made.rows, made.finish = pairs, finish
        return made

    def interval(self, reference: Mean) -> Interval | None:
        """Return the ends of the metric on other rows like these, where the reference is as here.

        Its samples are rows, each with its cost above the reference. None for one row,
        for other rows than the reference has, and for a candidate that differs in none.
        """
        if len(self.rows) < 2 or not np.array_equal(self.rows[:, 1], reference.rows[:, 1]):
            return None
        more = self.rows[:, 0] - reference.rows[:, 0]
        if not more.any():
            return None
        mean, reach = self.rows[:, 0].sum() / self.rows[:, 1].sum(), ratio_reach(more, self.rows[:, 1])
        return self.finish(float(mean - reach)), self.finish(float(mean + reach))


def pair_rows(
    outputs: Iterator[Arrays], labels: Any, axes: int, what: str
) -> Iterator[tuple[NDArray[Any], Any]]:
    """Yield each row of the first output with `axes` axes, and its label.

    Args:
        outputs: of each sample.
        labels: one for each row, in order.
        axes: of the output, with that of the rows.
        what: the output in words, for errors.

    Raises DataError for a model without such an output, and for too few labels.
    """
    at = 0
    for made in outputs:
        rows = next((a for a in made.values() if isinstance(a, np.ndarray) and a.ndim == axes), None)
        if rows is None:
            raise DataError(f"the metric needs {what}; give a metric of your own as package.module:function")
        if at + len(rows) > len(labels):
            raise DataError(
                f"there are {len(labels)} labels for at least {at + len(rows)} rows; give one for each"
            )
        yield from zip(rows, labels[at : at + len(rows)], strict=True)
        at += len(rows)

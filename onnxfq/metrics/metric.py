"""`Metric`: a figure of a task from the outputs of a model; `NamedMetric`: one that comes with onnxfq."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError

Arrays = Mapping[str, NDArray[Any]]
Metric = Callable[[Iterator[Arrays], Any], float]
"""Takes the outputs of each sample in order, and the labels of their rows or, without labels, the samples."""


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

"""Labels: the class of every row, from a file, and the classes that outputs predict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.data import read_npz
from onnxfq.data.sources import list_files
from onnxfq.data.validation import UNCONVERTIBLE, as_array
from onnxfq.errors import DataError
from onnxfq.metrics import Metric, find_named
from onnxfq.metrics.classes import count_right, predict_classes, refuse_label_count
from onnxfq.support.arrays import UNREADABLE, load_npy
from onnxfq.support.reading import read_text
from onnxfq.support.records import join_lines

Labels = str | Path | ArrayLike
"""Classes of all rows in order, whole numbers or names as the model returns them; or a file of them.

A folder of data with a folder of images for each class has its labels too.
"""


def read_labels(labels: Labels, whole: bool = True) -> NDArray[Any]:
    """Return labels as int64 or texts of shape [rows].

    A file is an .npy, an .npz with one array or `labels`, or text with one label a line. In a folder with a
    folder of images for each class, as torchvision's ImageFolder reads it, a class is the place of its folder
    in the order of names, or its name if all names are whole numbers.

    Args:
        labels: in memory, or a file of them.
        whole: False also takes other numbers, as they are: a metric knows what they are.

    Raises DataError for a missing or unreadable file, and for values that are neither whole numbers nor text.
    """
    in_memory = not isinstance(labels, (str, Path))
    source = "the given labels" if in_memory else str(labels)
    try:
        values = as_array(labels) if in_memory else _read(Path(str(labels)))
        if Path(source).suffix in (".csv", ".tsv") and any(set(",\t") & {*str(one)} for one in values.flat):
            raise ValueError("it is a table: take its column, one label a line")
        is_text = values.dtype.kind == "U" or all(isinstance(text, str) for text in values.ravel())
        if values.size and is_text:
            return values.ravel().astype(str)
        if values.ndim and values.dtype.kind in "fiub" and not whole:
            return values
        with np.errstate(invalid="ignore"):  # whatever does not survive the cast is refused
            exact = values.size and values.ndim and np.array_equal(values.astype(np.int64), values)
        if not exact:
            raise ValueError(f"they must be whole numbers, got {values.dtype}; others are for a --metric")
    except FileNotFoundError:
        raise DataError(f"no such file: {source}; check the path of the labels") from None
    except (*UNREADABLE, *UNCONVERTIBLE) as fault:
        what = "are no labels" if in_memory else "does not hold labels"
        remedy = "one whole number or text per row" if in_memory else ".npy, .npz or text"
        raise DataError(f"{source} {what} ({join_lines(fault)}); give {remedy}") from None
    return values.ravel().astype(np.int64)


def read_truth(labels: Labels, metric: str | Metric | None) -> NDArray[Any]:
    """Return labels as a metric reads them, one or more for each sample in the first axis; None for classes.

    Raises DataError for what it cannot read.
    """
    named = find_named(metric)
    if named is None or named.read is None or not isinstance(labels, (str, Path)):
        return read_labels(labels, whole=metric is None)
    try:
        return named.read(Path(labels))
    except DataError as fault:
        raise DataError(f"{fault}; metric {metric} reads {named.labels}") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(
            f"cannot read the labels {labels} ({join_lines(fault)}); give {named.labels}"
        ) from None


_MANY = 10
"""Rows from which chance does not explain that none is right."""


@dataclass
class RightClasses:
    """Numbers of rows whose class is the label, and of those where it would be with labels shifted by one.

    Attributes:
        labels: of all rows, in their order.
        output: its name.
    """

    labels: NDArray[Any]
    output: str
    rows: int = 0
    right: int = 0
    shifted: Counter[int] = field(default_factory=Counter)

    def add(self, value: object) -> NDArray[Any]:
        """Count the rows of an output, and return their labels. Raises DataError if there are too few."""
        classes = predict_classes(value, self.output)
        truth = self.labels[self.rows : self.rows + classes.size]
        self.rows += classes.size
        if self.rows > self.labels.size:
            raise refuse_label_count(self.labels, f"at least {self.rows}", self.output)
        self.right += count_right(classes, truth, self.output)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and self._ends is not None:
            for shift, possible in ((-1, self._ends[0] > 0), (1, self._ends[1] + 1 < value.shape[-1])):
                self.shifted[shift] += possible * int((classes == truth + shift).sum())
        return truth

    @cached_property
    def _ends(self) -> tuple[int, int] | None:
        """The smallest and the largest label; None for texts."""
        numbers = self.labels.dtype.kind == "i" and self.labels.size
        return (int(self.labels.min()), int(self.labels.max())) if numbers else None

    def notes(self) -> list[str]:
        """Return a line if none is right, or most are with labels that count from another number."""
        for shift, right in self.shifted.items():
            if right > self.rows / 2 and right > 2 * self.right:
                what = "1 less" if shift < 0 else "1 more"
                return [
                    f"{self.right / self.rows:.1%} of the labels are right, and {right / self.rows:.1%} with "
                    f"{what}: labels and model seem to count classes from different numbers"
                ]
        if self.right or self.rows < _MANY:
            return []
        return [f"none of {self.rows} labels is right: they may belong to other data, or be in another order"]


def _read_folder(folder: Path) -> NDArray[np.int64]:
    """Return the class of each image of a folder, in the order in which the data is read."""
    kind, paths, _ = list_files(folder)
    names = [path.relative_to(folder).parts[0] for path in paths]
    if kind != "image" or any(path.parent == folder for path in paths):
        raise DataError(f"{folder} has no folder of images for each class; give a file of labels")
    if all(name.isdecimal() for name in names):
        return np.asarray(names).astype(np.int64)
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _read(path: Path) -> NDArray[Any]:
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".npy":
        return np.asarray(load_npy(path))
    if path.suffix != ".npz":
        return _read_text(path)
    arrays = read_npz(path)
    if "labels" in arrays or len(arrays) == 1:
        return arrays["labels"] if "labels" in arrays else arrays.popitem()[1]
    raise DataError(f"{path} has {', '.join(arrays)}; name the labels `labels`")


def _read_text(path: Path) -> NDArray[Any]:
    """Return the numbers of a text file, or its lines if it begins with a word; # begins a comment."""
    lines = read_text(path).splitlines()
    texts = [text for line in lines if (text := line.partition("#")[0].strip())]
    try:
        float(texts[0].split()[0])
    except (IndexError, ValueError):
        return np.asarray(texts, str)
    return np.asarray([float(word) for text in texts for word in text.split()])

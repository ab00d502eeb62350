"""Labels: class number of every row, from a file, and the rows of outputs that they fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.data import read_npz
from onnxfq.data.validation import UNCONVERTIBLE, as_array
from onnxfq.errors import DataError
from onnxfq.support.arrays import UNREADABLE, load_npy
from onnxfq.support.reading import read_bytes
from onnxfq.support.records import join_lines

Labels = ArrayLike
"""An array, a tensor or a list of numbers, one for each row of the first output."""


def read_labels(labels: str | Path | Labels) -> NDArray[Any]:
    """Return labels in memory as an array, or read them from a file.

    A file is an .npy, the only array (or `labels`) of an .npz, or text with one number per line; its labels
    are int64 of shape [rows]. Raises DataError for a missing or unreadable file, for values in it that are
    not whole numbers, and for labels in memory other than numbers.
    """
    if not isinstance(labels, (str, Path)):
        return _to_numbers(labels)
    path = Path(labels)
    try:
        if path.suffix == ".npz":
            arrays = read_npz(path)
            values = (
                arrays["labels"] if "labels" in arrays else arrays.popitem()[1] if len(arrays) == 1 else None
            )
            if values is None:
                raise DataError(f"{path} has {', '.join(arrays)}; name the labels `labels`")
        else:
            values = load_npy(path) if path.suffix == ".npy" else _read_text(path)
        found = np.asarray(values).ravel()
        with np.errstate(invalid="ignore"):  # whatever does not survive the cast is refused
            if found.size == 0 or not np.array_equal(found.astype(np.int64), found):
                raise DataError(f"{path}: labels must be whole numbers, one per row; got {found.dtype}")
    except FileNotFoundError:
        raise DataError(f"no such file: {path}; check the path of the labels") from None
    except (*UNREADABLE, TypeError) as fault:
        text = join_lines(fault)
        raise DataError(f"{path} does not hold labels ({text}); give .npy, .npz or text") from None
    return found.astype(np.int64)


def _to_numbers(labels: Any) -> NDArray[Any]:
    try:
        found = as_array(labels)
    except UNCONVERTIBLE as fault:
        raise DataError(f"labels are not an array ({join_lines(fault)}); give one number per row") from None
    if found.ndim == 0 or found.dtype.kind not in "fiub":
        raise DataError(f"labels must be numbers, one per row; got {found.dtype} {list(found.shape)}")
    return found


def count_rows(output: NDArray[Any]) -> int:
    """Return the number of rows of an output: all axes but the last, which holds classes."""
    return int(np.prod(output.shape[:-1])) if output.ndim else 1


def count_right(output: NDArray[Any], labels: NDArray[Any]) -> int:
    """Return the number of rows of `output` whose largest element is at the label.

    Raises DataError for an output without classes.
    """
    if output.ndim < 2:
        raise DataError(f"labels need an output of [rows, classes], got shape {list(output.shape)}")
    predicted = output.argmax(-1).ravel()
    return int((predicted[: labels.size] == labels).sum())


def refuse_label_count(labels: NDArray[Any], rows: str, output: str) -> DataError:
    """Return the error of labels whose number differs from the rows of `output`."""
    return DataError(f"{labels.size} labels for {rows} rows of output {output!r}; give one label per row")


def _read_text(path: Path) -> NDArray[np.float64]:
    """Return the numbers of a text file; # begins a comment."""
    lines = read_bytes(path).decode("utf-8").splitlines()
    return np.asarray([float(word) for line in lines for word in line.partition("#")[0].split()])

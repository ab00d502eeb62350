"""Labels: class number of every row, from a file, and the rows of outputs that they fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import read_npz
from onnxfq.errors import DataError
from onnxfq.support.arrays import UNREADABLE, load_npy
from onnxfq.support.reading import read_bytes
from onnxfq.support.records import join_lines


def read_labels(path: str | Path) -> NDArray[np.int64]:
    """Read labels from an .npy, from the only array (or `labels`) of an .npz, or from text, one per line.

    Returns int64 of shape [rows]. Raises DataError for a missing or unreadable file, or for values that are
    not whole numbers.
    """
    path = Path(path)
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
        labels = np.asarray(values).ravel()
        with np.errstate(invalid="ignore"):  # whatever does not survive the cast is refused
            if labels.size == 0 or not np.array_equal(labels.astype(np.int64), labels):
                raise DataError(f"{path}: labels must be whole numbers, one per row; got {labels.dtype}")
    except FileNotFoundError:
        raise DataError(f"no such file: {path}; check the path of the labels") from None
    except (*UNREADABLE, TypeError) as fault:
        text = join_lines(fault)
        raise DataError(f"{path} does not hold labels ({text}); give .npy, .npz or text") from None
    return labels.astype(np.int64)


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

"""Labels: class number of every row, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import read_npz
from onnxfq.errors import DataError
from onnxfq.support.files import load_npy


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
            values = load_npy(path) if path.suffix == ".npy" else np.loadtxt(path, ndmin=1)
        labels = np.asarray(values).ravel()
        if labels.size == 0 or not np.equal(np.mod(labels, 1), 0).all():
            raise DataError(f"{path}: labels must be whole numbers, one per row; got {labels.dtype}")
    except FileNotFoundError:
        raise DataError(f"no such file: {path}; check the path of the labels") from None
    except (OSError, ValueError, TypeError) as fault:
        raise DataError(f"{path} does not hold labels ({fault}); give .npy, .npz or text") from None
    return labels.astype(np.int64)

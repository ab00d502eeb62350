"""`cosine` and `neighbours`: embeddings against the ones of a reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.metrics.metric import Arrays, Mean, pair_rows

_EMBEDDINGS = "an output of embeddings [rows, features]"


def cosine(outputs: Iterator[Arrays], labels: Any) -> Mean:
    """Return the mean cosine of the angle between embeddings and the ones of the reference.

    Args:
        outputs: of each sample; the first of shape [rows, features] has embeddings.
        labels: embeddings of the reference, [rows, features].
    """
    made, wanted = _read_both(outputs, labels)
    return Mean.of((one, 1) for one in (made * wanted).sum(1))


def neighbours(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return the share of rows with the same nearest row as in the reference, by the cosine, 0 to 1.

    Arguments as of `cosine`. Raises DataError for fewer than three rows.
    """
    made, wanted = _read_both(outputs, labels)
    if len(made) < 3:
        raise DataError(f"neighbours need at least three rows, and there are {len(made)}; give more data")
    return float(np.mean(_find_nearest(made) == _find_nearest(wanted)))


def _find_nearest(rows: NDArray[np.float64]) -> NDArray[np.intp]:
    alike = rows @ rows.T
    np.fill_diagonal(alike, -np.inf)
    return np.asarray(alike.argmax(1))


def _read_both(outputs: Iterator[Arrays], labels: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the embeddings and the ones of the reference, all of length 1."""
    pairs = list(pair_rows(outputs, labels, 2, _EMBEDDINGS))
    if not pairs or pairs[0][0].shape != np.shape(pairs[0][1]):
        raise DataError("labels must be embeddings of a reference, [rows, features] as the output has them")
    made, wanted = (np.asarray(side, np.float64) for side in zip(*pairs, strict=True))
    return _normalize(made), _normalize(wanted)


def _normalize(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0), np.float64)

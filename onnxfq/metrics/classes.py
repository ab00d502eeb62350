"""`top1`, `top5` and `miou`: classes of rows, and of the points of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.metrics.metric import Arrays, pair_rows

_IGNORED = 255
"""Label of points that do not count, as in the masks of PASCAL VOC and Cityscapes."""

_SCORES = "an output of scores [rows, classes]"


def top1(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return the percentage of rows whose largest score is at the label."""
    return _count_among(outputs, labels, 1)


def top5(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return the percentage of rows with the label among the five largest scores."""
    return _count_among(outputs, labels, 5)


def _count_among(outputs: Iterator[Arrays], labels: Any, most: int) -> float:
    # Equal scores keep their order, as argmax has it.
    right = [
        label in np.argsort(-row, kind="stable")[:most]
        for row, label in pair_rows(outputs, labels, 2, _SCORES)
    ]
    return 100.0 * sum(right) / max(len(right), 1)


def miou(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return the mean over classes of intersection over union of class maps, 0 to 1.

    Both are summed over all samples, and a class that is in none of them does not count: PASCAL VOC's
    segmentation accuracy (Everingham et al., IJCV 111, 2015).

    Args:
        outputs: of each sample; the first of shape [rows, classes, height, width] has scores.
        labels: whole numbers [rows, height, width]; points of 255 do not count.

    Raises DataError for masks of another size.
    """
    pairs: NDArray[np.int64] = np.zeros((0, 0), np.int64)
    for scores, mask in pair_rows(
        outputs, labels, 4, "an output of class scores [rows, classes, height, width]"
    ):
        count = len(scores)
        if mask.shape != scores.shape[1:]:
            raise DataError(
                f"a mask is {list(mask.shape)} and the output {list(scores.shape[1:])}; resize the masks"
            )
        counted = mask != _IGNORED
        truth, found = mask[counted].astype(np.int64), scores.argmax(0)[counted]
        if truth.size and not 0 <= truth.min() <= truth.max() < count:
            raise DataError(f"masks have class {truth.max()}, and the output scores {count} classes")
        made = np.bincount(truth * count + found, minlength=count * count).reshape(count, count)
        pairs = made if not pairs.size else pairs + made
    both = np.diag(pairs)
    union = pairs.sum(0) + pairs.sum(1) - both
    return float(np.mean(both[union > 0] / union[union > 0])) if union.any() else 0.0

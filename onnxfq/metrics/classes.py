"""`top1`, `top5` and `miou`: classes that outputs predict, of rows and of the points of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.metrics.metric import Arrays, pair_rows
from onnxfq.metrics.outputs import FlatOutput

_IGNORED = 255
"""Label of points that do not count, as in the masks of PASCAL VOC and Cityscapes."""


def predict_classes(value: object, output: str) -> NDArray[Any]:
    """Return the class of each row, in one axis.

    Integers, booleans and texts are classes. Floats, and integers of 8 or 16 bits, [..., classes] predict the
    place of the largest one, and maps the key of their largest value.

    Args:
        value: the output of a run.
        output: its name.

    Raises DataError for an output without classes.
    """
    flat = FlatOutput.of(value)
    if flat.keys and not flat.is_discrete:
        return np.asarray([flat.keys[place] for place in flat.array.argmax(-1)])
    scores = isinstance(value, np.ndarray) and value.ndim > 1 and value.shape[-1] > 1
    wide = flat.array.dtype.kind in "bOSU" or flat.array.dtype.itemsize > 2
    if isinstance(value, np.ndarray) and flat.is_discrete and (wide or not scores):
        return value.ravel().astype(str if value.dtype.kind in "OSU" else np.int64)
    if not scores:
        form = f"shape {list(value.shape)}" if isinstance(value, np.ndarray) else "a sequence"
        raise DataError(
            f"labels need classes, or an output of [rows, classes]; the first output, {output!r}, has {form}"
        )
    return np.ravel(flat.array.argmax(-1))


def count_right(classes: NDArray[Any], labels: NDArray[Any], output: str) -> int:
    """Return the number of `classes` that are the label. Raises DataError for texts against numbers."""
    if classes.size and labels.size and (classes.dtype.kind == "U") != (labels.dtype.kind == "U"):
        predicted, label = classes[0].item(), labels[0].item()
        raise DataError(
            f"output {output!r} gives classes such as {predicted!r}, the labels are such as {label!r}; give "
            "labels as the model names them"
        )
    return int((classes[: labels.size] == labels).sum())


def refuse_label_count(labels: NDArray[Any], rows: str, output: str) -> DataError:
    """Return the error of labels whose number differs from the rows of `output`."""
    each = labels.size // int(rows) if rows.isdecimal() and labels.size % int(rows) == 0 else 0
    one_hot = ": of one-hot labels their argmax(axis=1); masks are for --metric miou" if each > 1 else ""
    return DataError(
        f"{labels.size} labels for {rows} rows of output {output!r}; give one label per row{one_hot}"
    )


def top1(outputs: Iterator[Arrays], labels: NDArray[Any]) -> float:
    """Return the percentage of rows of the first output whose class is the label.

    Raises DataError for an output without classes, and for too few labels.
    """
    row = right = 0
    for made in outputs:
        name, first = next(iter(made.items()))
        classes = predict_classes(first, name)
        end = row + classes.size
        if end > len(labels):
            raise refuse_label_count(labels, f"at least {end}", name)
        right += count_right(classes, labels[row:end], name)
        row = end
    return 100.0 * right / max(row, 1)


def top5(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return the percentage of rows with the label among the five largest scores."""
    # Equal scores keep their order, as argmax has it.
    right = [
        label in np.argsort(-row, kind="stable")[:5]
        for row, label in pair_rows(outputs, labels, 2, "an output of scores [rows, classes]")
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
    wanted = "an output of class scores [rows, classes, height, width]"
    for scores, mask in pair_rows(outputs, labels, 4, wanted):
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

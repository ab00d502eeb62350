"""`mean_precision` and `f1`: boxes with scores and classes against the annotations of COCO."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from onnxfq.errors import DataError
from onnxfq.metrics.metric import Arrays
from onnxfq.support.groups import group_pairs
from onnxfq.support.records import ForeignRecord, parse, read_content

Numbers = NDArray[np.float64]

_OVERLAPS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST = 100
"""Overlaps, recalls and boxes of an image, as pycocotools evaluates by default (`Params.setDetParams`)."""

_LEAST_SCORE, _F1_OVERLAP = 0.25, 0.5
"""Score of a box that is shown, as Ultralytics' `predict` has it, and overlap of one that is right."""


class _Image(ForeignRecord):
    id: int | str


class _Category(ForeignRecord):
    id: int


class _Annotation(ForeignRecord):
    image_id: int | str
    category_id: int
    bbox: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]
    iscrowd: bool = False


class _Annotations(ForeignRecord):
    images: tuple[_Image, ...] = Field(min_length=1)
    categories: tuple[_Category, ...] = Field(min_length=1)
    annotations: tuple[_Annotation, ...]


class Boxes(NamedTuple):
    """Boxes of one image: corners [boxes, 4] as x1, y1, x2, y2; scores, 1 of annotations; classes; crowds."""

    corners: Numbers
    scores: Numbers
    classes: NDArray[np.int64]
    crowds: NDArray[np.bool_]


def read_coco(path: Path) -> NDArray[Any]:
    """Return the annotated boxes of each image of a COCO file, in the order of its `images`.

    Classes are the places of categories in the order of their numbers. Source: "COCO data format",
    cocodataset.org. Raises DataError for any other file.
    """
    found = parse(read_content(path, DataError), _Annotations, DataError, str(path))
    places = {number: place for place, number in enumerate(sorted(one.id for one in found.categories))}
    given = group_pairs((one.image_id, one) for one in found.annotations)
    images = np.empty(len(found.images), object)
    for at, image in enumerate(found.images):
        own = given.get(image.id, [])
        unknown = [one.category_id for one in own if one.category_id not in places]
        if unknown:
            raise DataError(f"{path} annotates category {unknown[0]}, which it does not list; add it")
        corners = np.array([one.bbox for one in own], np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        classes = np.array([places[one.category_id] for one in own], np.int64)
        images[at] = Boxes(corners, np.ones(len(own)), classes, np.array([one.iscrowd for one in own], bool))
    return images


def mean_precision(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return COCO's average precision over overlaps of 50 to 95%, the mean over classes, 0 to 1.

    As `COCOeval` of pycocotools computes it for boxes of all sizes.

    Args:
        outputs: of each sample, boxes in the coordinates of the labels: one output [images, boxes, 6] of
            x1, y1, x2, y2, score and class; or boxes [images, boxes, 4] with scores and classes
            [images, boxes]. Without the axis of images each sample is one.
        labels: as `read_coco` returns them.
    """
    pairs = list(_pair_images(outputs, labels))
    wanted = sorted({int(one) for _, truth in pairs for one in truth.classes[~truth.crowds]})
    found = [_average_precision(pairs, number, overlap) for number in wanted for overlap in _OVERLAPS]
    return float(np.mean(found or [0.0]))


def f1(outputs: Iterator[Arrays], labels: Any) -> float:
    """Return the harmonic mean of precision and recall of boxes with a score of 0.25, at an overlap of half.

    Arguments as of `mean_precision`. Classes must agree.
    """
    right = shown = wanted = 0
    for made, truth in _pair_images(outputs, labels):
        made = _take(made, made.scores >= _LEAST_SCORE)
        for number in np.unique([*made.classes, *truth.classes]):
            own, given = _take(made, made.classes == number), _take(truth, truth.classes == number)
            is_right, is_left = _match(own, given, _F1_OVERLAP)
            right, shown = right + int((is_right & ~is_left).sum()), shown + int((~is_left).sum())
            wanted += int((~given.crowds).sum())
    return 2.0 * right / max(shown + wanted, 1)


def _take(boxes: Boxes, kept: NDArray[np.bool_] | NDArray[np.intp]) -> Boxes:
    return Boxes(boxes.corners[kept], boxes.scores[kept], boxes.classes[kept], boxes.crowds[kept])


def _average_precision(pairs: list[tuple[Boxes, Boxes]], number: int, overlap: float) -> float:
    """Return the mean precision at `_RECALLS` of one class at one overlap."""
    scores, right, count = [], [], 0
    for made, truth in pairs:
        own, given = _take(made, made.classes == number), _take(truth, truth.classes == number)
        order = np.argsort(-own.scores, kind="stable")[:_MOST]
        own = _take(own, order)
        is_right, is_left = _match(own, given, overlap)
        scores.append(own.scores[~is_left])
        right.append(is_right[~is_left])
        count += int((~given.crowds).sum())
    order = np.argsort(-np.concatenate(scores), kind="stable")
    good = np.concatenate(right)[order].cumsum()
    precision = good / np.arange(1, len(good) + 1)
    highest = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)  # at this recall or a higher one
    return float(highest[np.searchsorted(good / count, _RECALLS)].mean())


def _match(made: Boxes, truth: Boxes, overlap: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which boxes are right, each annotation once, and which lie in crowds and do not count."""
    truth = _take(truth, np.argsort(truth.crowds, kind="stable"))
    overlaps = _measure_overlaps(made, truth)
    free = np.ones(len(truth.scores), bool)
    is_right, is_left = np.zeros((2, len(made.scores)), bool)
    for at in np.argsort(-made.scores, kind="stable"):
        best, place = min(overlap, 1 - 1e-10), -1
        for other, share in enumerate(overlaps[at]):
            if place >= 0 and not truth.crowds[place] and truth.crowds[other]:
                break  # crowds are last
            if (free[other] or truth.crowds[other]) and share >= best:
                best, place = share, other
        if place >= 0:
            free[place], is_right[at], is_left[at] = False, True, truth.crowds[place]
    return is_right, is_left


def _measure_overlaps(made: Boxes, truth: Boxes) -> Numbers:
    """Return intersection over union of all pairs, [boxes, annotations]; of crowds over the box alone."""
    low = np.maximum(made.corners[:, None, :2], truth.corners[None, :, :2])
    high = np.minimum(made.corners[:, None, 2:], truth.corners[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(one.corners[:, 2:] - one.corners[:, :2], axis=1) for one in (made, truth)]
    union = areas[0][:, None] + np.where(truth.crowds, 0.0, areas[1] - both)
    return np.asarray(np.divide(both, union, out=np.zeros_like(both), where=union > 0), np.float64)


def _pair_images(outputs: Iterator[Arrays], labels: Any) -> Iterator[tuple[Boxes, Boxes]]:
    """Yield the boxes of each image and its annotations."""
    at = 0
    for made in outputs:
        for boxes in _read_boxes(made):
            if at >= len(labels):
                raise DataError(
                    f"there are annotations of {len(labels)} images, and more samples; give one for each"
                )
            yield boxes, labels[at]
            at += 1


def _read_boxes(made: Arrays) -> Iterator[Boxes]:
    """Yield the boxes of each image of a run that have a score. Raises DataError for other forms."""
    arrays = {name: np.asarray(array) for name, array in made.items() if isinstance(array, np.ndarray)}
    # "box_scores" are scores.
    scores, classes = (
        next((a for name, a in arrays.items() if re.search(words, name.lower())), None)
        for words in ("scor|conf", "class|label")
    )
    shape = None if scores is None or classes is None else (*scores.shape, 4)
    corners = next((a for a in arrays.values() if a.shape == shape), None)
    joined = next((a for a in arrays.values() if a.ndim in (2, 3) and a.shape[-1] == 6), None)
    if corners is None and joined is not None:
        corners, scores, classes = joined[..., :4], joined[..., 4], joined[..., 5]
    if corners is None or scores is None or classes is None:
        raise DataError(
            "boxes need an output [images, boxes, 6], or boxes [images, boxes, 4], scores and classes; "
            f"the outputs are {', '.join(arrays)}; decode them by --metric module:function"
        )
    if corners.ndim == 2:
        corners, scores, classes = corners[None], scores[None], classes[None]
    for row, score, number in zip(corners, scores, classes, strict=True):
        difficult = np.zeros(len(row), bool)
        own = Boxes(row.astype(np.float64), score.astype(np.float64), number.astype(np.int64), difficult)
        yield _take(own, own.scores > 0)

"""`list_choices`: one item of each group, of least value for each weight: the multiple-choice knapsack.

Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation", Management Science 15, 1969: of
the choices for some groups, those stay for which no other has less weight and less value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.float64]
"""A figure of each item, [group, item]."""

STATES = 4096
"""Choices that stay, of equal distances in weight, if more could: the sum is off by so small a part of it."""


class Choices(NamedTuple):
    """Choices of which none has less weight and less value than another, the lightest first.

    Attributes:
        items: the item of each group, [choice, group].
        weights: the sum of each choice.
    """

    items: NDArray[np.int64]
    weights: NDArray[np.float64]


def list_choices(values: Items, weights: Items) -> Choices:
    """Return the choices of least value for their weights. Ties go to the first items."""
    count = values.shape[1]
    weight, value = np.zeros(1), np.zeros(1)
    kept: list[NDArray[np.int64]] = []
    for more, worth in zip(weights, values, strict=True):
        weight, value = (weight[:, None] + more).ravel(), (value[:, None] + worth).ravel()
        order = np.lexsort((value, weight))
        least = np.minimum.accumulate(value[order])
        order = order[np.concatenate([[True], least[1:] < least[:-1]])]
        if len(order) > STATES:
            place = np.floor(weight[order] / weight[order[-1]] * STATES)
            order = order[np.concatenate([[True], place[1:-1] != place[2:], [True]])]
        weight, value = weight[order], value[order]
        kept.append(order)
    items = np.zeros((len(weight), len(kept)), np.int64)
    at = np.arange(len(weight))
    for group in reversed(range(len(kept))):
        at, items[:, group] = np.divmod(kept[group][at], count)
    return Choices(items, weight)

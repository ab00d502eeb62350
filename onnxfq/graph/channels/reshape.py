"""Channel variables through Reshape and its relatives."""

from __future__ import annotations

from math import prod
from typing import cast

import numpy as np

from onnxfq.graph.channels.ties import Ids

Shape = tuple[int | None, ...]
Block = tuple[Shape, Shape]
"""Neighbouring axes before and after, with equal products of their sizes."""


def reshape_ids(ids: Ids, before: Shape, after: Shape) -> Ids | None:
    """Return `ids` of a tensor of shape `before` reshaped to `after`; None if open sizes leave it unknown.

    Axes are matched in the smallest blocks of equal size, from the last axis to an open one, then from the
    first axis. All indices of the axes between must share one variable.
    """
    last = [(a[::-1], b[::-1]) for a, b in _match_blocks(before[::-1], after[::-1])][::-1]
    rest = (before[: len(before) - _axes(last, 0)], after[: len(after) - _axes(last, 1)])
    first = _match_blocks(*rest)
    between = (rest[0][_axes(first, 0) :], rest[1][_axes(first, 1) :])
    whole: list[int] = []  # the sizes to expand the axes of ids to, and their form after the reshape
    made: list[int] = []
    for sizes, sizes_after in (*first, between, *last):
        own = ids.shape[len(whole) : len(whole) + len(sizes)]
        if all(size == 1 for size in own):
            whole += [1] * len(sizes)
            made += [1] * len(sizes_after)
        elif (sizes, sizes_after) is between or None in (*sizes, *sizes_after):
            return None
        else:
            whole += cast("list[int]", list(sizes))
            made += cast("list[int]", list(sizes_after))
    return np.broadcast_to(ids, whole).reshape(made)


def _axes(blocks: list[Block], side: int) -> int:
    return sum(len(block[side]) for block in blocks)


def _match_blocks(before: Shape, after: Shape) -> list[Block]:
    """Return the smallest blocks from the first axis to the first open size."""
    found: list[Block] = []
    i = j = 0
    for end in range(1, len(before) + 1):
        if before[end - 1] is None:
            break
        size = prod(cast("tuple[int, ...]", before[i:end]))
        stop = j + 1
        while stop < len(after) and None not in after[j:stop] and _size(after[j:stop]) < size:
            stop += 1
        if stop > len(after) or None in after[j:stop]:
            break
        if _size(after[j:stop]) == size:
            found.append((before[i:end], after[j:stop]))
            i, j = end, stop
    return found


def _size(sizes: Shape) -> int:
    return prod(cast("tuple[int, ...]", sizes))

"""`split_samples`: the kept samples that choose, those that prove, and those that do neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnxfq.data import Feed

CHOOSING = 8
"""Most samples that choose; at most a third of those that are kept."""

PROVING = 16
"""Most samples that prove; at most a third of those that are kept."""

FOLDED = 12
"""Samples from which on parts choose and prove; of fewer, each half proves what the other chose."""


class Split(NamedTuple):
    """Samples that choose, and other samples that prove."""

    choosing: Sequence[Feed]
    proving: Sequence[Feed]


def split_samples(kept: Sequence[Feed]) -> tuple[list[Split], list[Feed]]:
    """Return how the kept samples choose and prove, and the samples that do neither.

    With FOLDED samples or more there is one split. Fewer have two, half against half, and all of them are
    left for the report. One sample has none.
    """
    if len(kept) < 2:
        return [], list(kept)
    if len(kept) < FOLDED:
        middle = len(kept) // 2
        halves = kept[:middle], kept[middle:]
        return [Split(*halves), Split(*reversed(halves))], list(kept)
    proving, choosing = min(PROVING, len(kept) // 3), min(CHOOSING, len(kept) // 3)
    end = proving + choosing
    return [Split(kept[proving:end], kept[:proving])], list(kept[end:])


def choose_split(kept: Sequence[Feed]) -> Split:
    """Return the first split; the only sample both chooses and proves."""
    splits, _ = split_samples(kept)
    return splits[0] if splits else Split(kept, kept)

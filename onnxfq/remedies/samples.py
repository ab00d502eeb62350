"""`split_samples`: the kept samples that choose, those that prove, and those that do neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnxfq.data import Feed
from onnxfq.data.replay import StreamSamples

CHOOSING = 8
"""Most samples that choose; at most a third of those that are kept."""

PROVING = 16
"""Most samples that prove; at most a third of those that are kept."""

SHARED = 12
"""Samples from which on some neither choose nor prove, for the report; of fewer, it has all."""


class Split(NamedTuple):
    """Samples that choose, other samples that prove, and those that neither did."""

    choosing: Sequence[Feed]
    proving: Sequence[Feed]
    unused: Sequence[Feed]


def split_samples(kept: Sequence[Feed]) -> Split:
    """Return how the kept samples choose and prove, and the samples that do neither.

    With fewer than SHARED samples half choose, half prove, and `unused` is `kept` itself. A single sample
    both chooses and proves, which proves nothing.
    A third of a stream chooses, and another third proves, each in the order of the runs.
    """
    if len(kept) < 2:
        return Split(kept, kept, kept)
    if len(kept) < SHARED:
        middle = len(kept) // 2
        return Split(kept[:middle], kept[middle:], kept)
    third = len(kept) // 3
    is_stream = isinstance(kept, StreamSamples)
    proving, choosing = (third, third) if is_stream else (min(PROVING, third), min(CHOOSING, third))
    end = proving + choosing
    parts = kept[proving:end], kept[:proving], kept[end:]
    return Split(*map(StreamSamples, parts)) if is_stream else Split(*parts)

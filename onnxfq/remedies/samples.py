"""`split_samples`: the kept samples that choose, those that prove, and those that do neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnxfq.data import Feed
from onnxfq.data.stream import StreamSamples

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

    @property
    def promised(self) -> Sequence[Feed]:
        """The samples that prove a promise: of a stream all that did not choose, to the end of recordings."""
        if not isinstance(self.proving, StreamSamples):
            return self.proving
        return StreamSamples([*self.proving, *self.unused], self.proving.recordings, self.proving.outputs)


def split_samples(kept: Sequence[Feed]) -> Split:
    """Return how the kept samples choose and prove, and the samples that do neither.

    With fewer than SHARED samples half choose, half prove, and `unused` is `kept` itself. A single sample
    both chooses and proves, which proves nothing.
    A third of a stream chooses, the next one proves; the last is at the end of recordings, where errors are
    most.
    """
    if len(kept) < 2:
        return Split(kept, kept, kept)
    if len(kept) < SHARED:
        middle = len(kept) // 2
        return Split(kept[:middle], kept[middle:], kept)
    third = len(kept) // 3
    if isinstance(kept, StreamSamples):
        return Split(*(kept.part(slice(*ends)) for ends in ((third,), (third, 2 * third), (2 * third, None))))
    proving, choosing = min(PROVING, third), min(CHOOSING, third)
    end = proving + choosing
    return Split(kept[proving:end], kept[:proving], kept[end:])

"""`split_samples`: the kept samples that choose, those that prove, and those that do neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnxfq.data import Feed
from onnxfq.data.stream import StreamSamples

CHOOSING = 8
"""Samples that choose, or half as many as prove; at most a third of those that are kept."""

PROVING = 16
"""Samples that prove, if a third of those that are kept is as many; more where their runs are cheap."""

REPORTED = 64
"""Samples of a report; more where their runs are cheap, and fewer once their interval is narrow."""

SHARED = 12
"""Samples from which on some neither choose nor prove, for the report; of fewer, it has all."""


class Split(NamedTuple):
    """Samples that choose, other samples that prove, and those that neither did."""

    choosing: Sequence[Feed]
    proving: Sequence[Feed]
    unused: Sequence[Feed]

    @property
    def promised(self) -> Sequence[Feed]:
        """The samples that prove a promise, and are its report: all that did not choose."""
        if not self.unused or self.unused[0] is self.choosing[0]:
            return self.proving
        others = [*self.proving, *self.unused]
        if isinstance(self.proving, StreamSamples):
            return StreamSamples(others, self.proving.recordings, self.proving.outputs)
        return others


def take(samples: Sequence[Feed], count: int) -> Sequence[Feed]:
    """Return the first `count` samples; all of a stream, whose error grows over whole recordings."""
    return samples if isinstance(samples, StreamSamples) else samples[:count]


def split_samples(kept: Sequence[Feed], most: int = PROVING) -> Split:
    """Return how the kept samples choose and prove, and the samples that do neither.

    With fewer than SHARED samples half choose, half prove, and `unused` is `kept` itself. A single sample
    both chooses and proves, which proves nothing.
    A third of a stream chooses, the next one proves; the last is at the end of recordings, where errors are
    most. At most a third of other samples proves, and at most `most`; half as many choose, or CHOOSING.
    """
    if len(kept) < 2:
        return Split(kept, kept, kept)
    if len(kept) < SHARED:
        middle = len(kept) // 2
        return Split(kept[:middle], kept[middle:], kept)
    third = len(kept) // 3
    if isinstance(kept, StreamSamples):
        return Split(*(kept.part(slice(*ends)) for ends in ((third,), (third, 2 * third), (2 * third, None))))
    proving, choosing = min(most, third), min(max(CHOOSING, most // 2), third)
    end = proving + choosing
    return Split(kept[proving:end], kept[:proving], kept[end:])

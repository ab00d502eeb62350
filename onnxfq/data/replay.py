"""Feeds that are read once and used twice: the first one beforehand, some for a comparison afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from onnxfq.data.inputs import Feed

CHECK_BYTES = 64 << 20
"""Feeds kept from the pass over the data for the comparison at the end, in bytes at most."""
CHECK_FEEDS = 128


class KeptFeeds:
    """Passes feeds on and keeps some, spread evenly: a one-shot iterator serves the comparison as well.

    Every `_stride`-th feed is kept; when there are too many, every other one goes and the stride doubles.
    """

    lasting = True  # its sources are: Feeds, or nothing

    def __init__(self, source: Iterable[Feed]) -> None:
        """Keep none yet: `feeds` has them after a pass."""
        self._source = source
        self._begun: Iterator[Feed] | None = None
        self._stride = 1
        self.feeds: list[Feed] = []

    def read_first(self) -> Feed:
        """Return the first feed, which the next pass yields all the same."""
        begun = iter(self._source)
        first = next(begun)
        self._begun = chain([first], begun)
        return first

    def __iter__(self) -> Iterator[Feed]:
        """Yield all of them; what an earlier pass kept is forgotten."""
        self._stride, self.feeds = 1, []
        source, self._begun = self._begun or self._source, None
        for number, feed in enumerate(source):
            if number % self._stride == 0:
                self.feeds.append({name: array.copy() for name, array in feed.items()})
                while len(self.feeds) > 1 and (len(self.feeds) > CHECK_FEEDS or self._bytes() > CHECK_BYTES):
                    self.feeds = self.feeds[::2]
                    self._stride *= 2
            yield feed

    def _bytes(self) -> int:
        return sum(array.nbytes for feed in self.feeds for array in feed.values())

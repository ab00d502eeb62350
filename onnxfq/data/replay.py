"""Replay of feeds from a single pass: the first feed in advance, and some for a later comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain

import numpy as np

from onnxfq.data.feeds import Feeds
from onnxfq.data.inputs import Feed

CHECK_BYTES = 64 << 20
"""Most bytes of feeds that are kept from the pass for the comparison at the end."""
CHECK_FEEDS = 128


class EvenSelection:
    """An even selection of feeds that come one after the other.

    Every `stride`-th feed is kept; if these are too many, every other one is dropped and the stride doubles.
    """

    def __init__(self, fits: Callable[[Sequence[Feed]], bool]) -> None:
        """Start without feeds; `fits` tells whether several may be kept."""
        self._fits = fits
        self.stride, self._number = 1, 0
        self.feeds: list[Feed] = []

    def add(self, feed: Feed) -> None:
        """Keep a copy of `feed` if it is one of the selection."""
        if self._number % self.stride == 0:
            self.feeds.append({name: np.array(array) for name, array in feed.items()})
            while len(self.feeds) > 1 and not self._fits(self.feeds):
                self.feeds = self.feeds[::2]
                self.stride *= 2
        self._number += 1


class KeptFeeds:
    """Feeds that keep an even selection of themselves: a one-shot iterator also serves the comparison."""

    lasting = True  # its sources, Feeds or nothing, are lasting

    def __init__(self, source: Feeds) -> None:
        """Start without kept feeds; `feeds` has them after a pass."""
        self.source = source
        self._begun: Iterator[Feed] | None = None
        self._stride = 1
        self.feeds: list[Feed] = []

    def again(self) -> Iterable[Feed]:
        """Return the feeds for one more pass: all, or the kept ones if the source can be read only once."""
        return self.source if self.source.repeats else list(self.feeds)

    def again_without(self, count: int) -> Iterable[Feed]:
        """Return the feeds for one more pass, except the first `count` of `spread_order(self.feeds)`."""
        left_out = set(spread_numbers(len(self.feeds))[:count])
        if not self.source.repeats:
            return [feed for number, feed in enumerate(self.feeds) if number not in left_out]
        return _Except(self.source, {number * self._stride for number in left_out})

    def read_first(self) -> Feed:
        """Return the first feed; the next pass still yields it."""
        return self.read_ahead(1)[0]

    def read_ahead(self, count: int) -> list[Feed]:
        """Return up to `count` feeds, or CHECK_BYTES of them; the next pass still yields them."""
        begun = self._begun or iter(self.source)
        first: list[Feed] = []
        size = 0
        while len(first) < count and size < CHECK_BYTES and (feed := next(begun, None)) is not None:
            first.append({name: array.copy() for name, array in feed.items()})
            size += sum(array.nbytes for array in feed.values())
        self._begun = chain(first, begun)
        return first

    def __iter__(self) -> Iterator[Feed]:
        """Yield all feeds; the feeds kept by an earlier pass are dropped."""
        kept = EvenSelection(_fit_check)
        self.feeds = kept.feeds
        source, self._begun = self._begun or self.source, None
        for feed in source:
            kept.add(feed)
            self.feeds, self._stride = kept.feeds, kept.stride
            yield feed


class _Except:
    """Feeds except some numbers; each iteration is a pass over the data."""

    lasting = True

    def __init__(self, source: Feeds, numbers: Set[int]) -> None:
        self._source, self._numbers = source, numbers

    def __iter__(self) -> Iterator[Feed]:
        return (feed for number, feed in enumerate(self._source) if number not in self._numbers)


def _fit_check(feeds: Sequence[Feed]) -> bool:
    size = sum(array.nbytes for feed in feeds for array in feed.values())
    return len(feeds) <= CHECK_FEEDS and size <= CHECK_BYTES


def spread_places(total: int, count: int) -> list[int]:
    """Return `count` of the numbers below `total`, evenly spread with both ends, or all if they are fewer."""
    return [int(place) for place in np.linspace(0, total - 1, min(count, total)).round()]


def spread_order(feeds: Sequence[Feed]) -> list[Feed]:
    """Return `feeds` in an order whose every beginning is spread over them: by their number's reversed bits.

    It is van der Corput's sequence in base 2.
    """
    return [feeds[number] for number in spread_numbers(len(feeds))]


def spread_numbers(count: int) -> list[int]:
    """Return the numbers below `count` in the order of `spread_order`."""
    width = count.bit_length()
    return sorted(range(count), key=lambda n: f"{n:0{width}b}"[::-1])

"""Replay of feeds from a single pass: the first feed in advance, and some samples for what is chosen by runs.

The samples of least digest are kept. Neither the order of the data nor its batches decide which they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain

import numpy as np

from onnxfq.data.batching import rebatch
from onnxfq.data.digest import sample_digests
from onnxfq.data.feeds import Feeds
from onnxfq.data.inputs import Feed, Inputs, copy_feed, sample_count, samples

CHECK_BYTES = 64 << 20
"""Most bytes of samples that are kept from the pass, to choose by them and for the comparison at the end."""
CHECK_SAMPLES = 128

LEAST_HELD_OUT = 8
"""Samples from which on some are unseen: the ranges of fewer need them all."""

FEWEST_UNSEEN, MOST_UNSEEN = 16, 64
"""Bounds of the unseen quarter: fewer samples tell little, and more cost time."""

_ALL = 1 << 256
"""Above every digest."""


def count_bytes(sample: Feed) -> int:
    """Return the bytes of the arrays of `sample`."""
    return sum(array.nbytes for array in sample.values())


class Selection:
    """The samples of least digest, each once, as many as there is room for.

    Attributes:
        samples: copies of them, the one of least digest first; feeds that hold one sample each.
        digests: of these samples.
        counts: times that each of them came, by digest.
    """

    def __init__(self, inputs: Inputs, room: int, most: int, size: Callable[[Feed], int]) -> None:
        """Start without samples.

        Args:
            inputs: of the model.
            room: most that the sizes of all samples but a single one may sum up to.
            most: number of samples.
            size: of a sample.
        """
        self._inputs, self._room, self._most, self._size = inputs, room, most, size
        self._sizes: list[int] = []
        self._limit = _ALL  # the least digest for which there was no room; there is none for those above
        self.digests: list[int] = []
        self.samples: list[Feed] = []
        self.counts: dict[int, int] = {}

    def add(self, feed: Feed) -> list[Feed]:
        """Keep copies of the samples of `feed` that belong to the selection; return those that do not.

        Samples of earlier feeds that lose their place are returned too, as often as they came.
        """
        others: list[Feed] = []
        for digest, sample in zip(
            sample_digests(feed, self._inputs), samples(feed, self._inputs), strict=True
        ):
            at = bisect_left(self.digests, digest)
            if digest >= self._limit:
                others.append(sample)
                continue
            self.counts[digest] = self.counts.get(digest, 0) + 1
            if digest in self.digests[at : at + 1]:
                continue
            self.digests.insert(at, digest)
            self.samples.insert(at, copy_feed(sample))
            self._sizes.insert(at, self._size(sample))
            while len(self.samples) > self._most or (len(self.samples) > 1 and sum(self._sizes) > self._room):
                self._limit = self.digests.pop()
                others += [self.samples.pop()] * self.counts.pop(self._limit)
                del self._sizes[-1]
        return others

    def repeated(self, start: int, stop: int | None = None) -> list[Feed]:
        """Return the samples of these places, each as often as it came."""
        places = range(len(self.samples))[start:stop]
        return [self.samples[at] for at in places for _ in range(self.counts[self.digests[at]])]


class KeptFeeds:
    """Feeds that keep a selection of their samples: a one-shot iterator also serves the comparison.

    Attributes:
        source: the feeds.
        feeds: the selected samples, after a pass; of data that is read once only, all that can be read again.
        unseen: as many of them, those of least digest, as `rest` has left out; none before.
    """

    lasting = True  # its sources, Feeds or nothing, are lasting

    def __init__(self, source: Feeds) -> None:
        """Start without kept samples."""
        self.source = source
        self._begun: Iterator[Feed] | None = None
        self._selection, self._complete = self._select(), False
        self._held_out = self._total = 0

    @property
    def unseen(self) -> list[Feed]:
        """See the class."""
        return self.feeds[: self._held_out]

    @property
    def feeds(self) -> list[Feed]:
        """See the class."""
        return self._selection.samples

    def rest(self) -> Iterable[Feed]:
        """Return a pass over all feeds but a quarter of the samples, which are `unseen` from its end on.

        A sample that comes several times is left out, or yielded, each time. Few samples are all yielded.
        """
        return _Rest(self)

    def held_out(self) -> list[Feed]:
        """Return the unseen samples as feeds, each as often as it came."""
        return self._selection.repeated(0, self._held_out)

    def yield_rest(self) -> Iterator[Feed]:
        """Yield the feeds of `rest`."""
        source = self.source
        yield from rebatch(self._withhold(), source.inputs, source.batch)

    def _withhold(self) -> Iterator[Feed]:
        if self._complete:
            self.hold_out()
            yield from self.again() if self.source.repeats else self.source
            return
        begun, self._begun = self._begun or iter(self.source), None
        self._selection = self._select()
        total = 0
        for feed in begun:
            total += sample_count(feed, self.source.inputs)
            yield from self._selection.add(feed)
        self._total, self._complete = total, True
        self.hold_out()
        yield from self._selection.repeated(self._held_out)

    def hold_out(self) -> None:
        """Decide, after a pass, how many are unseen: a quarter or FEWEST_UNSEEN, at most half of the kept.

        Half of the samples have narrower ranges than all, so that the SQNR is rather too low than too high.
        """
        if self._total >= LEAST_HELD_OUT:
            share = min(max(self._total // 4, FEWEST_UNSEEN), MOST_UNSEEN)
            self._held_out = min(share, len(self.feeds) // 2)

    def again(self, held_out: Sequence[Feed] = (), with_unseen: bool = False) -> Iterable[Feed]:
        """Return the feeds for one more pass, without the unseen samples and the kept samples `held_out`.

        A source that is read once only has the other kept samples. `with_unseen` keeps the unseen ones.
        """
        ids = {id(sample) for sample in (*(() if with_unseen else self.unseen), *held_out)}
        if not self.source.repeats:
            return [sample for sample in self.feeds if id(sample) not in ids]
        selection = zip(self._selection.digests, self.feeds, strict=True)
        digests = {digest for digest, sample in selection if id(sample) in ids}
        return _Except(self.source, digests) if digests else self.source

    def read_first(self) -> Feed:
        """Return the first feed; the next pass still yields it."""
        return self._read_ahead(1)[0]

    def select(self, count: int) -> list[Feed]:
        """Return up to `count` kept samples that are not unseen; data that can be read again is read before.

        Other data is read ahead by so many feeds, which the next pass still yields: its order then decides.
        """
        if not self.source.repeats:
            selection = self._select()
            for feed in self._read_ahead(count):
                selection.add(feed)
            return selection.samples[:count]
        if not self._complete:
            for _ in self:
                pass
        self.hold_out()
        return self.feeds[self._held_out :][:count]

    @property
    def is_few(self) -> bool:
        """Whether the samples are too few to leave any out of what the written model is made of."""
        return self._total < 4 * FEWEST_UNSEEN

    def _select(self) -> Selection:
        return Selection(self.source.inputs, CHECK_BYTES, CHECK_SAMPLES, count_bytes)

    def _read_ahead(self, count: int) -> list[Feed]:
        """Return up to `count` feeds, or CHECK_BYTES of them; the next pass still yields them."""
        begun = self._begun or iter(self.source)
        first: list[Feed] = []
        size = 0
        while len(first) < count and size < CHECK_BYTES and (feed := next(begun, None)) is not None:
            first.append(feed)
            size += count_bytes(feed)
        self._begun = chain(first, begun)
        return first

    def __iter__(self) -> Iterator[Feed]:
        """Yield all feeds; the first complete pass keeps samples."""
        source, self._begun = self._begun or self.source, None
        if self._complete:
            yield from source
            return
        self._selection = self._select()
        total = 0
        for feed in source:
            total += sample_count(feed, self.source.inputs)
            self._selection.add(feed)
            yield feed
        self._total, self._complete = total, True


class _Rest:
    """The feeds without the unseen samples; each iteration is a pass over the data."""

    lasting = True

    def __init__(self, kept: KeptFeeds) -> None:
        self._kept = kept

    def __iter__(self) -> Iterator[Feed]:
        return self._kept.yield_rest()


class _Except:
    """Feeds without samples of some digests; each iteration is a pass over the data."""

    lasting = True

    def __init__(self, source: Feeds, digests: Set[int]) -> None:
        self._source, self._digests = source, digests

    def __iter__(self) -> Iterator[Feed]:
        inputs = self._source.inputs
        for feed in self._source:
            stays = [digest not in self._digests for digest in sample_digests(feed, inputs)]
            if all(stays):
                yield feed
            elif any(stays):
                rows = np.flatnonzero(stays)
                yield {spec.name: feed[spec.name][rows] if spec.shape else feed[spec.name] for spec in inputs}

"""Replay of feeds from a single pass: the first feed in advance, and some samples for what is chosen by runs.

The samples of least digest are kept. Neither the order of the data nor its batches decide which they are.
In a stream each sample has the state that the one before leaves, and whole recordings are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import chain, islice

from onnxfq.data.apart import Apart, Extents
from onnxfq.data.batching import rebatch
from onnxfq.data.digest import sample_digests
from onnxfq.data.feeds import Feeds
from onnxfq.data.inputs import Feed, copy_feed, sample_count, samples
from onnxfq.data.passes import Passes, read_without
from onnxfq.data.selection import Selection, count_bytes
from onnxfq.data.stream import FloatOutputs, StreamSamples

CHECK_BYTES = 64 << 20
"""Most bytes of samples that are kept from the pass, to choose by them and for the comparison at the end."""
CHECK_SAMPLES = 4096

LEAST_HELD_OUT = 8
"""Samples from which on some are unseen: the ranges of fewer need them all."""

FEWEST_UNSEEN, MOST_UNSEEN = 16, 2048
"""Bounds of the unseen quarter: fewer samples tell little, and more give no narrower interval that counts."""

RUN = 1024
"""Consecutive samples of a stream that are kept or left together, where not all can be kept."""

STREAM_SAMPLES, STREAM_UNSEEN = 1024, 512
"""CHECK_SAMPLES and MOST_UNSEEN of a stream: neighbours tell nearly the same, and errors of the state add up
over recordings."""


class KeptFeeds:
    """Feeds that keep a selection of their samples: a one-shot iterator also serves the comparison.

    Attributes:
        source: the feeds.
        find_starts: tells of consecutive samples of a stream which begin a recording; None for other data.
            Set it before a pass.
        outputs: of the float model, see `StreamSamples`.
        feeds: the selected samples, after a pass; of data that is read once only, all that can be read again.
        unseen: as many of them, those of least digest, as `rest` has left out; none before.
        apart: samples of other magnitude than all others, after a pass; none of a stream. They are seen.
    """

    lasting = True  # its sources, Feeds or nothing, are lasting

    def __init__(self, source: Feeds) -> None:
        """Start without kept samples."""
        self.source = source
        self.find_starts: Callable[[Sequence[Feed]], Sequence[bool]] | None = None
        self._recordings: list[list[Feed]] = []
        self.outputs: FloatOutputs = {}
        self._begun: Iterator[Feed] | None = None
        self._selection, self._complete = self._select(), False
        self._held_out = self._total = 0
        self._removed: Counter[int] = Counter()
        self.apart: list[Apart] = []

    @property
    def is_stream(self) -> bool:
        """Whether the data is a stream."""
        return self.find_starts is not None

    @property
    def unseen(self) -> list[Feed]:
        """See the class."""
        feeds = self.feeds
        held = slice(self._held_out)
        return feeds.part(held) if isinstance(feeds, StreamSamples) else feeds[held]

    @property
    def feeds(self) -> list[Feed]:
        """See the class."""
        found = self._selection.samples
        return StreamSamples(found, self._recordings, self.outputs) if self.is_stream else found

    @property
    def compared(self) -> list[Feed]:
        """The samples to compare models on: the unseen ones; of few samples, all that do not stand apart."""
        if self.unseen or not self.apart:
            return self.unseen or self.feeds
        return self.without_apart().feeds

    def number(self, sample: Feed) -> int | None:
        """Return the number, from 0, of a kept sample in the order of the data; None for another feed."""
        return self._selection.number(sample)

    def without_apart(self) -> KeptFeeds:
        """Return the feeds without the samples that stand apart; the other kept samples are the same."""
        digests = [sample.digest for sample in self.apart]
        other = copy(self)
        other._selection, other._removed = self._selection.without(digests), Counter(digests)
        other._total, other.apart = self._total - len(digests), []
        return other

    def read_apart(self) -> list[Feed]:
        """Return the samples that stand apart, from a pass over data that can be read again."""
        inputs, digests = self.source.inputs, {sample.digest for sample in self.apart}
        return [
            copy_feed(sample)
            for feed in self.source
            for digest, sample in zip(sample_digests(feed, inputs), samples(feed, inputs), strict=True)
            if digest in digests
        ]

    def rest(self) -> Iterable[Feed]:
        """Return a pass over all feeds but a quarter of the samples, which are `unseen` from its end on.

        A sample that comes several times is left out, or yielded, each time. Few samples are all yielded.
        """
        source = self.source
        return Passes(lambda: rebatch(self.withhold(), source.inputs, source.batch))

    def held_out(self) -> list[Feed]:
        """Return the unseen samples as feeds, each as often as it came."""
        return self._selection.repeated(0, self._held_out)

    def withhold(self) -> Iterator[Feed]:
        """Yield the feeds of `rest` in any sizes."""
        if self._complete:
            self.hold_out()
            yield from self.again() if self.source.repeats else self.source
            return
        for _, others in self._keep():
            yield from others
        self.hold_out()
        yield from self._selection.repeated(self._held_out)

    def _keep(self) -> Iterator[tuple[Feed | None, list[Feed]]]:
        """Yield each feed with the samples that lose their place, at last the rest; keep the others."""
        begun, self._begun = self._begun or self.source, None
        self._selection = self._select()
        extents, total = Extents(self.source.inputs), 0
        for feed in begun:
            total += sample_count(feed, self.source.inputs)
            extents.add(feed)
            yield feed, self._selection.add(feed)
        yield None, self._selection.end_run()
        self._total, self._complete = total, True
        self.apart = [] if self.is_stream else extents.find_apart()
        self._selection.move_last([sample.digest for sample in self.apart])
        if self.find_starts is not None:
            self._recordings = self._selection.divide(self.find_starts)

    def hold_out(self) -> None:
        """Decide, after a pass, how many are unseen: a quarter or FEWEST_UNSEEN, at most half of the kept.

        Half of the samples have narrower ranges than all, so that the SQNR is rather too low than too high.
        In a stream half is unseen, whole recordings and the end of one: its state wanders, and leaves in time
        the range that a few hundred neighbours give.
        """
        if self._total >= LEAST_HELD_OUT:
            most = STREAM_UNSEEN if self.is_stream else MOST_UNSEEN
            total = self._total + self._removed.total()  # the same are unseen without some
            share = min(max(total // (2 if self.is_stream else 4), FEWEST_UNSEEN), most)
            self._held_out = min(share, len(self.without_apart().feeds) // 2)
            if self.is_stream:
                self._selection.split(self._held_out)

    def again(self, held_out: Sequence[Feed] = (), with_unseen: bool = False) -> Iterable[Feed]:
        """Return the feeds for one more pass, without the unseen samples and the kept samples `held_out`.

        A source that is read once only has the other kept samples. `with_unseen` keeps the unseen ones.
        """
        ids = {id(sample) for sample in (*(() if with_unseen else self.unseen), *held_out)}
        if not self.source.repeats:
            return [sample for sample in self.feeds if id(sample) not in ids]
        left_out = Counter(self._removed)
        kept = self._selection
        for digest, sample, count in zip(kept.digests, kept.samples, kept.times, strict=True):
            left_out[digest] += count if id(sample) in ids else 0
        without = Passes(partial(read_without, self.source, left_out))
        return without if left_out.total() else self.source

    def read_first(self) -> Feed:
        """Return the first feed; the next pass still yields it."""
        return self._read_ahead(1)[0]

    def read_samples(self, count: int) -> list[Feed]:
        """Return the first `count` samples, fewer if they are large; the next pass still yields them."""
        inputs = self.source.inputs
        return list(islice((one for feed in self._read_ahead(count) for one in samples(feed, inputs)), count))

    def select(self, count: int) -> list[Feed]:
        """Return up to `count` kept samples that are not unseen; data that can be read again is read before.

        Other data is read ahead by so many feeds, which the next pass still yields: its order then decides.
        """
        if not self.source.repeats:
            selection = self._select()
            for feed in self._read_ahead(count):
                selection.add(feed)
            selection.end_run()
            return selection.samples[:count]
        if not self._complete:
            for _ in self:
                pass
        self.hold_out()
        return self.feeds[self._held_out :][:count]

    def explain_cut(self) -> str:
        """Return a note if a stream was too long to be kept; empty otherwise."""
        kept = len(self.feeds)
        if not self.is_stream or kept == self._total:
            return ""
        longest = max(map(len, self._recordings))
        return (
            f"{kept} of {self._total} feeds of the stream were kept for the comparison, up to {longest} in a "
            "row: how its error grows beyond them is not measured"
        )

    @property
    def is_few(self) -> bool:
        """Whether the samples are too few to leave any out of what the written model is made of."""
        return self._total < 4 * FEWEST_UNSEEN

    def _select(self) -> Selection:
        length, most = (RUN, STREAM_SAMPLES) if self.is_stream else (1, CHECK_SAMPLES)
        return Selection(self.source.inputs, CHECK_BYTES, most, count_bytes, length)

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
        if self._complete:
            source, self._begun = self._begun or self.source, None
            yield from read_without(self.source, self._removed) if self._removed else source
            return
        yield from (feed for feed, _ in self._keep() if feed is not None)

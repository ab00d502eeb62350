"""Feeds: data of any source as checked {input name: array} of one batch size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from onnxfq.choices import DEFAULT_BATCH as DEFAULT_BATCH
from onnxfq.data.batching import (
    add_batch_axis,
    can_join,
    first_samples,
    join_feeds,
    rebatch,
    split_fixed_runs,
)
from onnxfq.data.digest import DataDigest, sample_digest
from onnxfq.data.inputs import (
    Feed,
    Inputs,
    WholeFeed,
    copy_feed,
    open_count,
    sample_count,
    samples_open,
    take_samples,
)
from onnxfq.data.options import DataOptions, prepare
from onnxfq.data.padding import Padding, Prove
from onnxfq.data.sources import Data, Source, SourceContext, open_source, tells_total
from onnxfq.data.survey import Survey, ValueRange
from onnxfq.data.validation import Notes, cast, check_finite, fit_shape, to_array
from onnxfq.errors import DataError
from onnxfq.support.readings import reading

log = logging.getLogger(__name__)


def copy_feeds(feeds: Iterable[Feed]) -> Iterator[Feed]:
    """Yield `feeds` with arrays that nobody overwrites: copies, except for feeds with `lasting`."""
    if getattr(feeds, "lasting", False):
        yield from feeds
        return
    yield from map(copy_feed, feeds)


ROWS = 4
"""Rows of axis 0, of the first feeds, that tell whether it counts samples."""

_MOST_READ = 32
"""Feeds of one row that are read for ROWS different ones."""

Judge = Callable[[Feed, Sequence[Feed], Feed], str]
"""Takes different rows of axis 0 together, the first and the last of them alone, and a feed as it is given.

It returns why rows do not count as samples; nothing if they do, or if runs cannot tell.
"""


class Feeds:
    """Checked feeds for one model; iterating yields {input name: array} that fit its inputs.

    If axis 0 counts samples in every input, feeds have `batch` samples each, whatever sizes the data has.
    Feeds are smaller before a change of shapes and at the end. Otherwise feeds are unchanged, and so they are
    if runs of the model tell that axis 0 counts something else.
    Every iteration is a pass over the data; data that can be read only once rejects a second pass.
    """

    lasting = True
    """Promise for `copy_feeds`: nobody overwrites the arrays of a feed."""

    def __init__(
        self,
        data: Data,
        inputs: Inputs,
        batch: int = DEFAULT_BATCH,
        options: DataOptions | None = None,
        judge: Judge | None = None,
        prove: Prove | None = None,
    ) -> None:
        """Create feeds without reading data yet.

        Args:
            data: any of the kinds in `sources.open_source`.
            inputs: inputs of the model.
            batch: samples per feed; 0 keeps the sizes of the data.
            options: preprocessing and checks.
            judge: asked once whether axis 0 counts samples, before feeds are cut or joined along it; without
                it, it does.
            prove: asked once whether padding changes no output; without it padding stays.

        Raises DataError for a negative batch.
        """
        if batch < 0:
            raise DataError(f"batch is {batch}; give at least 1, or 0 to keep the sizes of the data")
        self.data = data
        self.inputs = inputs
        self.batch = batch
        self.options = options or DataOptions()
        self.digest: DataDigest | None = None
        """Hash of all samples, independent of their order; set after the first complete pass."""
        self._total: int | None = None
        self._begun = False
        self._notes = Notes()
        self._judge = judge if samples_open(inputs) else None
        self._whole = False
        self._padding = None if prove is None else Padding(inputs, prove, self.options.padding == "fill")

    @property
    def total(self) -> int | None:
        """Number of samples; None if it is unknown before a pass."""
        if self._total is None and tells_total(self.data) and not self._whole:
            self._open(begun=False)
        return self._total

    @property
    def runs(self) -> int | None:
        """Approximate number of feeds in a pass; None if `total` is unknown."""
        if self.total is None or not self.batch or not samples_open(self.inputs):
            return self.total
        return -(-self.total // self.batch)

    @property
    def repeats(self) -> bool:
        """Tell whether the data can be read again."""
        return not isinstance(self.data, Iterator) and not (
            hasattr(self.data, "get_next") and not hasattr(self.data, "rewind")
        )

    def __iter__(self) -> Iterator[Feed]:
        """Yield the feeds in order. Raises DataError for the first fault, or for empty data."""
        source = self._open(self._begun)
        self._begun = True
        values = ValueRange(self.inputs, self._example(), None if self.options.prepares else self._notes)
        survey = Survey(self.inputs) if self.options.survey and self.digest is None else None
        feeds = self._judged(source)
        if self.options.limit is not None:
            feeds = first_samples(feeds, self.inputs, self.options.limit)
        if self._padding is not None:
            feeds = self._padding.cut(feeds, apart=self.batch > 0)
        number = 0
        for feed in rebatch(feeds, self.inputs, self.batch):
            if self.options.nonfinite == "stop":
                check_finite(feed, self.inputs, number)
            values.add(feed)
            if survey is not None:
                feed = survey.add(feed)
            number += sample_count(feed, self.inputs)
            yield feed
        if number == 0:
            once = ", and an iterator that nothing has read yet" if isinstance(self.data, Iterator) else ""
            raise DataError(f"{source.name} holds no samples; give at least one{once}")
        log.info(
            "%s: %d samples read", source.name, number, extra=reading(source.name, took=f"{number} sample(s)")
        )
        values.judge()
        if self._padding is not None and (cut_off := self._padding.explain()):
            self._notes.once(cut_off, source.name)
        if survey is not None:
            self.digest = survey.digest
            survey.tell(self._notes)

    def _open(self, begun: bool) -> Source:
        source = open_source(
            self.data, SourceContext(self.inputs, self.batch, self.options, self._whole), begun
        )
        for option in ("resize", "crop", "resample", "color"):
            if getattr(self.options, option) is not None and not source.images:
                raise DataError(
                    f"{option} is for image files, and {source.name} holds arrays; prepare them where they "
                    f"are made and leave {option} out, or give the image files"
                )
        if source.left:
            self._notes.once(source.left, source.name)
        limit = self.options.limit
        self._total = source.total if limit is None or source.total is None else min(source.total, limit)
        self._total = None if self._whole else self._total
        return source

    def _judged(self, source: Source) -> Iterator[Feed]:
        """Yield the feeds of `source`, whole ones if axis 0 turns out not to count samples."""
        feeds = self._fit_pieces(source)
        held: list[Feed] = []
        rows: list[Feed] = []
        for feed in feeds if self._judge is not None else ():
            count = open_count(feed, self.inputs)
            # Nothing has to be known of what is neither cut nor joined.
            alone = count is None or (count < 2 and self.batch == 1 and not source.cut)
            if alone and not held:
                yield feed
                continue
            held.append(feed)
            rows = _take_rows(held, self.inputs)
            if len(rows) == ROWS or len(held) == _MOST_READ:
                break
        if self._judge is not None and len(rows) > 1:
            judge, self._judge = self._judge, None
            together = join_feeds(rows, self.inputs)
            why = judge(together, (rows[0], rows[-1]), together if source.cut else held[0])
            self._whole = bool(why)
            if why and self.batch:
                self._notes.once(
                    f"axis 0 of the inputs counts no samples: {why}; feeds stay whole, as with --batch 0"
                )
            if why and source.cut:
                held, feeds = [], self._fit_pieces(self._open(self._begun))
        for feed in chain(held, feeds):
            yield WholeFeed(feed) if self._whole else feed

    def _fit_pieces(self, source: Source) -> Iterator[Feed]:
        """Yield the pieces of `source` as arrays that fit the inputs; each piece is read when needed."""
        word = "sample" if samples_open(self.inputs) else "feed"
        number = 0
        for piece in source.pieces:
            where = f"in {word} {number}"
            given = {spec.name: to_array(piece.values[spec.name], spec, where) for spec in self.inputs}
            for run in split_fixed_runs(add_batch_axis(given, self.inputs), self.inputs):
                feed = self._fit(run, self.options, where)
                if not source.lasting:  # its owner may overwrite the same memory
                    feed = {name: array.copy() for name, array in feed.items()}
                count = open_count(feed, self.inputs)
                number += 1 if count is None else count
                for note in filter(None, piece.note.split("\n")):
                    self._notes.once(note, source.name)
                yield feed

    def _fit(self, arrays: Feed, options: DataOptions, where: str) -> Feed:
        for spec in self.inputs:
            fit_shape(arrays[spec.name], spec, where)
        ready = prepare(arrays, self.inputs, options)
        return {spec.name: cast(ready[spec.name], spec, where, self._notes) for spec in self.inputs}

    def _example(self) -> Feed | None:
        """Return the known-good sample of the options, or None."""
        if self.options.example is None:
            return None
        plain = DataOptions(layout=self.options.layout, color=self.options.color)
        source = open_source(self.options.example, SourceContext(self.inputs, self.batch, plain))
        for piece in source.pieces:
            given = {
                spec.name: to_array(piece.values[spec.name], spec, "of the example") for spec in self.inputs
            }
            return self._fit(add_batch_axis(given, self.inputs), plain, "of the example")
        raise DataError(f"example {self.options.example} holds no samples; give a known-good sample")


def _take_rows(feeds: Sequence[Feed], inputs: Inputs) -> list[Feed]:
    """Return up to ROWS different rows of axis 0 that can be joined, spread over `feeds`."""
    rows_by_digest: dict[int, Feed] = {}
    for feed in feeds:
        count = open_count(feed, inputs) or 0
        for place in np.linspace(0, count - 1, min(count, _MOST_READ)).astype(int).tolist():
            row = take_samples(feed, inputs, place, place + 1)
            if not rows_by_digest or can_join(next(iter(rows_by_digest.values())), row, inputs):
                rows_by_digest.setdefault(sample_digest(row), row)
    rows = list(rows_by_digest.values())
    return [rows[place] for place in np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(int).tolist()]

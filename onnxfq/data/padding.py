"""Padding, the positions of a sample that a mask hides: cut off, it sets no range and moves no weight."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Feed, Inputs, WholeFeed, samples

MOST_HELD = 32
"""Feeds, from the first one with padding, whose samples prove that it changes no output."""


class CutSample(NamedTuple):
    """A padded sample, the same without its padding, and the positions that hold no padding.

    A sample that keeps its size has its own positions, repeated, in place of the others.
    """

    padded: Feed
    cut: Feed
    size: int
    kept: slice
    is_filled: bool

    @property
    def length(self) -> int:
        """Number of positions that are kept."""
        return int(self.kept.stop - self.kept.start)


Prove = Callable[[Sequence[CutSample]], bool]
"""Tells whether runs of the model prove that the cut positions change no output."""


class Padding:
    """Cuts the padding of samples where runs prove that it changes no output.

    A mask is an input of two axes with a block of ones in each row, at its begin or at its end, and zeros
    elsewhere. Every other axis of an input that has the size of the mask, and is open or fixed like it, is
    cut with it, except for the first one. No sample becomes shorter than the shortest that runs have proven.
    """

    def __init__(self, inputs: Inputs, prove: Prove, fills: bool = False) -> None:
        """Cut feeds of `inputs`; `prove` is asked once for a mask, with its shortest and longest sample.

        With `fills`, a sample of open size keeps it as one of fixed size does.
        """
        self._inputs, self._prove, self._fills = inputs, prove, fills
        self._masks: dict[str, int] | None = None
        """The proven masks, and the length of their shortest sample; None before a padded one is read."""
        self._positions = self._left = 0

    def cut(self, feeds: Iterable[Feed], apart: bool) -> Iterator[Feed]:
        """Yield `feeds` without padding, padded ones sample by sample if `apart`, else to their longest."""
        feeds = iter(feeds)
        if self._masks is None:
            held = yield from self._decide(feeds)
            feeds = chain(held, feeds)
        for feed in feeds:
            for row in samples(feed, self._inputs) if self._masks and apart else [feed]:
                yield self._cut(row)

    def explain(self) -> str:
        """Return what was cut off; empty for nothing."""
        if not self._left:
            return ""
        masks, share = self._masks or {}, self._left / self._positions
        done = "cut off" if all(masks.values()) else "filled with the others, repeated"
        names = " and ".join(map(repr, masks))
        return f"{share:.0%} of the positions are padding by {names}: they change no output, and are {done}"

    def _decide(self, feeds: Iterator[Feed]) -> Generator[Feed, None, list[Feed]]:
        """Find the masks. Yield the feeds in front of the first padded one, and return those read with it."""
        names = [one.name for one in self._inputs if len(one.shape or ()) == 2]
        held: list[Feed] = []
        for feed in feeds:
            names = [name for name in names if _kept_positions(feed[name]) is not None]
            rows = [*samples(feed, self._inputs)]
            if names and not held and not any(self._find(rows, name) for name in names):
                yield feed
                continue
            held.append(feed)
            if not names or len(held) == MOST_HELD:
                break
        if not held:
            return held
        self._masks = {}
        for name in names:
            rows = [self._cut(row) for feed in held for row in samples(feed, self._inputs)]
            found = self._find(rows, name)
            ends = found[:1] + [one for one in found[-1:] if one.length > found[0].length]
            if ends and self._prove(ends):
                self._masks[name] = 0 if ends[0].is_filled else ends[0].length
        self._positions = self._left = 0
        return held

    def _find(self, rows: Iterable[Feed], mask: str) -> list[CutSample]:
        """Return the padded samples of `rows`, the shortest first."""
        found = (_cut_sample(row, self._inputs, mask, fills=self._fills) for row in rows)
        return sorted(filter(None, found), key=lambda sample: sample.length)

    def _cut(self, feed: Feed) -> Feed:
        """Return `feed` without the padding of all proven masks."""
        for name, least in () if isinstance(feed, WholeFeed) else (self._masks or {}).items():
            found = _cut_sample(feed, self._inputs, name, least, self._fills)
            self._positions += feed[name].size
            if found is not None:
                feed = found.cut
                self._left += len(feed[name]) * (found.size - found.length)
        return feed


def _cut_sample(
    feed: Feed, inputs: Inputs, mask: str, least: int = 0, fills: bool = False
) -> CutSample | None:
    """Return `feed` and a form that has `least` positions or more, or None where nothing is padded."""
    kept, size = _kept_positions(feed[mask]), feed[mask].shape[-1]
    length = size if kept is None else max(kept.stop - kept.start, least)
    if kept is None or length >= size:
        return None
    (own,) = (one.shape[1] for one in inputs if one.name == mask and one.shape)
    is_filled = fills or own is not None
    start = 0 if kept.start == 0 else size - length
    positions = start + (np.arange(size) - start) % length
    taken = positions if is_filled else positions[start : start + length]
    cut = {}
    for one in inputs:
        cut[one.name] = feed[one.name]
        for axis, dim in enumerate((one.shape or ())[1:], 1):
            if dim == own and feed[one.name].shape[axis] == size and not (is_filled and one.name == mask):
                cut[one.name] = cut[one.name].take(taken, axis)
    return CutSample(feed, cut, size, slice(start, start + length), is_filled)


def _kept_positions(mask: NDArray[Any]) -> slice | None:
    """Return the positions that a mask leaves in any row, or None for another input."""
    if mask.ndim != 2 or not mask.size or mask.dtype.kind not in "biuf":
        return None
    ones, size = mask == 1, mask.shape[1]
    counts = ones.sum(axis=1)
    if not counts.all() or not (ones | (mask == 0)).all():
        return None
    places = np.arange(size)
    if (ones == (places < counts[:, None])).all():
        return slice(0, int(counts.max()))
    if (ones == (places >= size - counts[:, None])).all():
        return slice(size - int(counts.max()), size)
    return None

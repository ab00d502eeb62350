"""`Selection`: the samples of least digest in a pass, alone or in runs of consecutive ones.

Neither the order of the data nor its batches decide which samples are kept. Runs are of consecutive samples:
only there the order counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

from onnxfq.data.digest import sample_digests
from onnxfq.data.inputs import Feed, Inputs, copy_feed, samples

_ALL = 1 << 256
"""Above every digest."""


def count_bytes(sample: Feed) -> int:
    """Return the bytes of the arrays of `sample`."""
    return sum(array.nbytes for array in sample.values())


class _Run(NamedTuple):
    """Consecutive samples, the digest of each and of all, the sum of their sizes, and their first number."""

    digest: int
    digests: list[int]
    samples: list[Feed]
    size: int
    number: int

    def part(self, start: int, stop: int) -> _Run:
        """Return the run of some of the samples."""
        digests = self.digests[start:stop]
        return _Run(sum(digests) % _ALL, digests, self.samples[start:stop], 0, self.number + start)


class Selection:
    """The runs of samples of least digest, each once, as many as there is room for."""

    def __init__(
        self, inputs: Inputs, room: int, most: int, size: Callable[[Feed], int], length: int = 1
    ) -> None:
        """Start without samples.

        Args:
            inputs: of the model.
            room: most that the sizes of all samples but those of a single run may sum up to.
            most: number of samples, at least `length`.
            size: of a sample.
            length: consecutive samples of a run. One that takes half of the room has fewer.
        """
        self._inputs, self._room, self._most, self._size = inputs, room, most, size
        self._length = length
        self._begun: list[tuple[int, Feed]] = []
        self._begun_size = 0
        self._runs: list[_Run] = []
        self._limit = _ALL  # the least digest for which there was no room; there is none for those above
        self._counts: dict[int, int] = {}
        self._used = self._kept = 0  # sizes and number of the samples of all runs
        self._seen = 0  # samples of all runs that ended

    @property
    def samples(self) -> list[Feed]:
        """Copies of the samples, the run of least digest first; feeds that hold one sample each."""
        return [sample for run in self._runs for sample in run.samples]

    @property
    def digests(self) -> list[int]:
        """The digests of these samples."""
        return [digest for run in self._runs for digest in run.digests]

    @property
    def times(self) -> list[int]:
        """How often the run of each of them came."""
        return [self._counts[run.digest] for run in self._runs for _ in run.samples]

    def number(self, sample: Feed) -> int | None:
        """Return the place in the pass, from 0, where one of `samples` came first; None for another feed."""
        places = {id(one): run.number + at for run in self._runs for at, one in enumerate(run.samples)}
        return places.get(id(sample))

    def add(self, feed: Feed) -> list[Feed]:
        """Keep copies of the samples of `feed` that belong to the selection; return those that do not.

        Samples of earlier feeds that lose their place are returned too, as often as they came.
        """
        others: list[Feed] = []
        for one in zip(sample_digests(feed, self._inputs), samples(feed, self._inputs), strict=True):
            self._begun.append(one)
            self._begun_size += self._size(one[1])
            if len(self._begun) == self._length or 2 * self._begun_size > self._room:
                others += self.end_run()
        return others

    def end_run(self) -> list[Feed]:
        """End the run, as at the end of a pass; return the samples that have no place, as `add` does."""
        begun, self._begun, self._begun_size = self._begun, [], 0
        number = self._seen
        self._seen += len(begun)
        digest = sum(digest for digest, _ in begun) % _ALL
        if not begun or digest >= self._limit:
            return [sample for _, sample in begun]
        self._counts[digest] = self._counts.get(digest, 0) + 1
        if self._counts[digest] > 1:
            return []
        copies = [copy_feed(sample) for _, sample in begun]
        run = _Run(digest, [one for one, _ in begun], copies, sum(map(self._size, copies)), number)
        self._runs.insert(bisect_left(self._runs, digest, key=lambda one: one.digest), run)
        self._used, self._kept = self._used + run.size, self._kept + len(copies)
        others: list[Feed] = []
        while self._kept > self._most or (len(self._runs) > 1 and self._used > self._room):
            last = self._runs.pop()
            self._used, self._kept = self._used - last.size, self._kept - len(last.samples)
            self._limit = last.digest
            others += last.samples * self._counts.pop(last.digest)
        return others

    def divide(self, find_starts: Callable[[Sequence[Feed]], Sequence[bool]]) -> list[list[Feed]]:
        """Make each recording one run, after a pass, and return them in the order of their digests.

        Args:
            find_starts: tells of samples in the order of the data which do not continue the one before.
        """
        rows = [
            (run.number + at, digest, sample, self._counts[run.digest])
            for run in sorted(self._runs, key=lambda run: run.number)
            for at, (digest, sample) in enumerate(zip(run.digests, run.samples, strict=True))
        ]
        starts = find_starts([sample for _, _, sample, _ in rows])
        breaks = [
            at
            for at, (before, row) in enumerate(pairwise(rows), 1)
            if starts[at] or row[0] != before[0] + 1 or row[3] != before[3]
        ]
        self._runs, self._counts = [], {}
        for start, stop in pairwise(sorted({0, *breaks, len(rows)})):
            numbers, digests, found, times = zip(*rows[start:stop], strict=True)
            run = _Run(sum(digests) % _ALL, [*digests], [*found], 0, numbers[0])
            self._runs += [] if run.digest in self._counts else [run]
            self._counts[run.digest] = self._counts.get(run.digest, 0) + times[0]
        self._runs.sort(key=lambda run: run.digest)
        return [run.samples for run in self._runs]

    def split(self, count: int) -> None:
        """Divide the run in which the first `count` samples end: its last ones are among them."""
        found: list[_Run] = []
        for run in self._runs:
            size = len(run.samples)
            if 0 < count < size:
                tail, head = run.part(size - count, size), run.part(0, size - count)
                self._counts |= dict.fromkeys((tail.digest, head.digest), self._counts[run.digest])
                found += [tail, head]
            else:
                found.append(run)
            count -= size
        self._runs = found

    def move_last(self, digests: Collection[int]) -> None:
        """Put the runs with a sample of these digests behind all others."""
        self._runs.sort(key=lambda run: not set(digests).isdisjoint(run.digests))

    def without(self, digests: Collection[int]) -> Selection:
        """Return a selection of the same samples, without the runs that have one of these digests."""
        other = copy(self)
        other._runs = [run for run in self._runs if set(digests).isdisjoint(run.digests)]
        return other

    def repeated(self, start: int, stop: int | None = None) -> list[Feed]:
        """Return the samples of these places, each as often as its run came."""
        counted = list(zip(self.samples, self.times, strict=True))[start:stop]
        return [sample for sample, count in counted for _ in range(count)]

"""Data digest that does not depend on the order of samples or on batches."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Feed, Inputs, WholeFeed, samples

_MODULUS = 1 << 256

LEAST = 1024
"""Sample digests that are kept: all of a usual set, 8 KB of a file."""


def sample_digest(sample: Feed) -> int:
    """Return the SHA-256 of one sample over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(sample):
        array = sample[name]
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode() + b"\0")
        if array.dtype.kind == "O":  # strings; the bytes of such an array are addresses
            digest.update(json.dumps(array.tolist(), default=str).encode())
        else:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "big")


@dataclass(frozen=True)
class DataDigest:
    """Sum of sample digests modulo 2^256, and the number of `samples`.

    Attributes:
        value: the sum.
        samples: their number.
        least: leading 64 bits of the least LEAST sample digests, ascending: a sample of the samples by which
            overlapping data is recognized. Empty if unknown, in older files.
    """

    value: int = 0
    samples: int = 0
    least: tuple[int, ...] = field(default=(), compare=False)

    def __add__(self, other: DataDigest) -> DataDigest:
        """Return the digest of both sets of samples together."""
        value, count = (self.value + other.value) % _MODULUS, self.samples + other.samples
        return DataDigest(value, count, self._join_least(other))

    def _join_least(self, other: DataDigest) -> tuple[int, ...]:
        own, others = self.least, other.least
        if not (self.samples and other.samples):
            return own or others
        if not (own and others):
            return ()
        if len(own) == LEAST and others[0] >= own[-1]:
            return own
        return tuple(sorted(own + others)[:LEAST])

    def plus(self, digest: int) -> DataDigest:
        """Return the digest with one more sample, given its `sample_digest`."""
        return self + DataDigest(digest, 1, (digest >> 192,))

    def overlaps(self, other: DataDigest) -> bool:
        """Tell whether both are of the same data, as far as `least` shows.

        Equal samples occur in any data: more than half of the smaller set has to be in both.
        """
        if not (self.least and other.least):
            return self == other and self.samples > 0
        # Below this both have all of their digests.
        known = min((data.least[-1] for data in (self, other) if len(data.least) >= LEAST), default=1 << 64)
        sets = [{digest for digest in data.least if digest <= known} for data in (self, other)]
        return len(sets[0] & sets[1]) > min(map(len, sets)) // 2

    def count_shared(self, other: DataDigest) -> int:
        """Return how many of the samples in `least` are in both."""
        return len(set(self.least) & set(other.least))

    @property
    def hex(self) -> str:
        """Value as 64 hexadecimal digits, as in files."""
        return f"{self.value:064x}"


class DigestedFeed(dict[str, NDArray[Any]]):
    """A feed that nobody changes, with the digests of its samples: hashing costs as much as reading.

    Attributes:
        inputs: of the model, by which the feed was cut into samples.
        digests: of the samples, in order.
    """

    def __init__(self, feed: Feed, inputs: Inputs) -> None:
        """Take the arrays of `feed`, and hash them."""
        super().__init__(feed)
        self.inputs, self.digests = inputs, sample_digests(feed, inputs)


class DigestedWhole(WholeFeed, DigestedFeed):
    """A digested feed that is one sample."""


def sample_digests(feed: Feed, inputs: Inputs) -> tuple[int, ...]:
    """Return the digest of each sample in `feed`."""
    if isinstance(feed, DigestedFeed) and feed.inputs == inputs:
        return feed.digests
    return tuple(sample_digest(sample) for sample in samples(feed, inputs))


def digest_feed(feed: Feed, inputs: Inputs) -> DataDigest:
    """Return the digest of the samples in `feed`; it is the same for every batch size."""
    return reduce(DataDigest.plus, sample_digests(feed, inputs), DataDigest())

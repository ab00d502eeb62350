"""A hash of data that does not hang on the order of the samples or on how they are batched."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from onnxfq.data.inputs import Feed
from onnxfq.support.digests import DATA_MODULUS


def sample_digest(sample: Feed) -> int:
    """Return the SHA-256 of one sample, a feed of its own, over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(sample):
        array = sample[name]
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode() + b"\0")
        if array.dtype.kind == "O":  # texts; the bytes of such an array are addresses
            digest.update(json.dumps(array.tolist(), default=str).encode())
        else:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "big")


@dataclass(frozen=True)
class DataDigest:
    """The sum of the digests of samples modulo 2^256. samples: how many were added."""

    value: int = 0
    samples: int = 0

    def __add__(self, other: DataDigest) -> DataDigest:
        """Return the digest of both sets of samples together."""
        return DataDigest((self.value + other.value) % DATA_MODULUS, self.samples + other.samples)

    def plus(self, digest: int) -> DataDigest:
        """Return this with one sample more, given its `sample_digest`."""
        return self + DataDigest(digest, 1)

    @property
    def hex(self) -> str:
        """The value as 64 hexadecimal digits, as files hold it."""
        return f"{self.value:064x}"

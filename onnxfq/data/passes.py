"""`Passes`: data that can be read again and again, such as feeds without some of their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from onnxfq.data.digest import sample_digests
from onnxfq.data.feeds import Feeds
from onnxfq.data.inputs import Feed


class Passes:
    """Each iteration takes feeds of `begin` from the start. Nobody overwrites the arrays."""

    lasting = True

    def __init__(self, begin: Callable[[], Iterator[Feed]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Feed]:
        return self._begin()


def read_without(source: Feeds, left_out: Mapping[int, int]) -> Iterator[Feed]:
    """Yield the feeds of `source` without samples of some digests, each so many times."""
    left = Counter(left_out)
    for feed in source:
        stays = []
        for digest in sample_digests(feed, source.inputs):
            stays.append(not left[digest])
            left[digest] -= not stays[-1]
        if all(stays):
            yield feed
        elif any(stays):
            rows = np.flatnonzero(stays)
            parts = {spec.name: rows if spec.shape else ... for spec in source.inputs}
            yield {name: feed[name][part] for name, part in parts.items()}

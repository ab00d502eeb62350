"""`Except`: feeds without some of their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from onnxfq.data.digest import sample_digests
from onnxfq.data.feeds import Feeds
from onnxfq.data.inputs import Feed


class Except:
    """Feeds without samples of some digests, each so many times; each iteration is a pass over the data."""

    lasting = True

    def __init__(self, source: Feeds, left_out: Mapping[int, int]) -> None:
        self._source, self._left_out = source, left_out

    def __iter__(self) -> Iterator[Feed]:
        inputs, left = self._source.inputs, Counter(self._left_out)
        for feed in self._source:
            stays = []
            for digest in sample_digests(feed, inputs):
                stays.append(not left[digest])
                if left[digest]:
                    left[digest] -= 1
            if all(stays):
                yield feed
            elif any(stays):
                rows = np.flatnonzero(stays)
                yield {spec.name: feed[spec.name][rows] if spec.shape else feed[spec.name] for spec in inputs}

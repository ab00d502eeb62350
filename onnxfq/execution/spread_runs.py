"""`SpreadRuns`: values of inner tensors of the float model, read by the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from onnxfq.calibration.statistics.kind import InputKey
from onnxfq.data import DataDigest, Feed, copy_feeds
from onnxfq.execution.cluster import Cluster, split_shards
from onnxfq.execution.float_runs import FloatRuns, Readers
from onnxfq.graph.model import Model

Shard = tuple[int, list[Feed], Readers[Any]]
"""Number of the first feed, the feeds, and what reads them."""


class SpreadRuns:
    """Runs of the float model in place of `FloatRuns`, with the same bits: a feed runs alone on a thread."""

    def __init__(self, cluster: Cluster, model: Model, tensors: Iterable[str], memory: int) -> None:
        """Prepare the runs.

        Args:
            cluster: connected; its workers need onnxfq and the same kind of processor.
            model: the float model.
            tensors: to read.
            memory: bytes that the runs of a worker may take half of.
        """
        self._cluster = cluster
        self._opening = partial(FloatRuns, replace(model), set(tensors), 1, memory)

    def read(
        self, feeds: Iterable[Feed], readers: Readers[Any], first: int = 0
    ) -> Iterator[tuple[dict[InputKey, Any], DataDigest]]:
        """Yield what `FloatRuns.read` yields."""
        shards = ((at, shard, dict(readers)) for at, shard in split_shards(copy_feeds(feeds), first))
        return chain.from_iterable(self._cluster.map(self._opening, _read_shard, shards))

    def close(self) -> None:
        """Do nothing: workers open other runs in their place."""


def _read_shard(runs: FloatRuns, shard: Shard) -> list[tuple[dict[InputKey, Any], DataDigest]]:
    first, feeds, readers = shard
    return list(runs.read(feeds, readers, first))

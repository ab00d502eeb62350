"""`RayMoments`: second moments of the inputs of layers from a Ray cluster, with the bits of one machine.

Sums are integers on the grids of merged ranges, so that no division of the feeds changes a bit. Tasks are
stateless: if a worker dies, Ray runs its task again elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.weights import InputMoments
from onnxfq.calibration.weights.moments_file import Key, Ranges
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, copy_feeds
from onnxfq.execution.cluster import Cluster, Sent, split_shards
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.model import Model
from onnxfq.remedies.moments import (
    count_samples,
    input_ends,
    layer_keys,
    read_tensors,
    sample_inputs,
    sums_of_inputs,
    sums_of_layers,
)
from onnxfq.remedies.weighted_layers import WeightedLayer
from onnxfq.runtime.session import Progress


class RayMoments:
    """The ranges and sums of `SampledInputs`, from the workers of a cluster.

    Attributes:
        layers: the layers.
        ranges: largest magnitude of each channel, by input.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: Model,
        layers: Sequence[WeightedLayer],
        feeds: Iterable[Feed],
        samples: int,
        *,
        memory: int = MOMENTS_MEMORY,
        ranges: Ranges | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Send model and feeds, and find the ranges if none are given.

        Args:
            cluster: connected as long as this is used.
            model: the float model; its workers need onnxfq and the same kind of processor.
            layers: of `find_layers`.
            feeds: the data, read once; the cluster keeps it.
            samples: number of samples over which the rows are spread.
            memory: bytes that the runs of a worker, and its temporary file, may each take.
            ranges: the grids; those of the data if None.
            progress: called with the number of feeds whose ranges are known.

        Raises RuntimeLibraryError if the cluster fails, StatisticsError for NaN and infinities.
        """
        self.layers = layers
        self._cluster, self._keys = cluster, layer_keys(layers)
        self._how = layers, samples, memory
        self._sums: list[list[Sent]] = []
        opening = partial(FloatRuns, replace(model), read_tensors(layers), 1, memory)
        self._opened = cluster.put_opening(opening)
        self._shards = [(first, cluster.put(shard)) for first, shard in split_shards(copy_feeds(feeds))]
        self.ranges = self._find_ranges(progress) if ranges is None else dict(ranges)

    def sum(self, key: Key) -> MomentSums:
        """Return the moments of an input over all feeds. Raises StatisticsError as `sample_inputs`."""
        self._sums = self._sums or self._start_sums()
        number = self._keys.index(key)
        parts: Iterator[MomentSums] = (self._cluster.fetch(part[number], keep=True) for part in self._sums)
        return reduce(MomentSums.merge, parts)

    def _find_ranges(self, progress: Progress | None) -> dict[Key, NDArray[np.float64]]:
        started = [
            self._cluster.start(_shard_ranges, self._opened, self._keys, first, held=[shard])[0]
            for first, shard in self._shards
        ]
        found: dict[Key, NDArray[np.float64]] = {}
        for number, sent in enumerate(started):
            if number and progress is not None:
                progress(self._shards[number][0])
            for key, ends in self._cluster.fetch(sent).items():
                found[key] = np.maximum(found[key], ends) if key in found else ends
        return found

    def _start_sums(self) -> list[list[Sent]]:
        """Return the sums of each key, for each part of the feeds."""
        size = max(1, -(-len(self._shards) // max(1, self._cluster.workers())))
        parts = [self._shards[first : first + size] for first in range(0, len(self._shards), size)]
        return [
            self._cluster.start(
                _part_sums,
                self._opened,
                *self._how,
                self.ranges,
                part[0][0],
                held=[shard for _, shard in part],
                results=len(self._keys),
            )
            for part in parts
        ]


def collect_moments_on_ray(
    model: Model, layers: Sequence[WeightedLayer], feeds: Iterable[Feed], address: str, threads: int = 0
) -> Iterator[tuple[WeightedLayer, InputMoments]]:
    """Yield what `collect_moments` yields, from the workers of the cluster at `address`."""
    with Cluster(address, threads) as cluster:
        found = RayMoments(cluster, model, layers, feeds, count_samples(model, feeds))
        yield from sums_of_layers([found])


def _shard_ranges(
    runs: FloatRuns, keys: Sequence[Key], first: int, shards: Iterable[list[Feed]]
) -> dict[Key, NDArray[np.float64]]:
    return input_ends(runs, chain.from_iterable(shards), keys, first)


def _part_sums(
    runs: FloatRuns,
    layers: Sequence[WeightedLayer],
    samples: int,
    memory: int,
    ranges: Ranges,
    first: int,
    shards: Iterable[list[Feed]],
) -> Iterator[MomentSums]:
    """Yield the sums of each input; Ray takes them one after the other, so that memory holds one."""
    parts = sample_inputs(runs, layers, _Feeds(shards), samples, memory, ranges, first)
    return (sums for _, _, sums in sums_of_inputs(parts))


@dataclass(frozen=True)
class _Feeds:
    """The feeds of some shards, which come one after the other, as often as they are read."""

    shards: Iterable[list[Feed]]

    def __iter__(self) -> Iterator[Feed]:
        return chain.from_iterable(self.shards)

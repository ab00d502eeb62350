"""Second moments of the inputs of layers from a Ray cluster, with the bits of one machine.

Sums are integers on the grids of merged ranges, so that no division of the feeds changes a bit. Tasks are
stateless: if a worker dies, Ray runs its task again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from itertools import chain

from onnxfq.calibration.statistics.input_kinds import Ends, ObservedInput
from onnxfq.calibration.statistics.input_means import ENDS, ChannelEnds
from onnxfq.calibration.statistics.kind import InputKey
from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.statistics.second_moments import InputSums
from onnxfq.calibration.weights import InputMoments
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, copy_feeds
from onnxfq.execution.cluster import Cluster, Sent, split_shards
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.execution.gathering import Tally
from onnxfq.graph.model import Model
from onnxfq.remedies.moments import (
    Part,
    count_samples,
    layer_keys,
    moments_of_inputs,
    moments_of_layers,
    read_tensors,
    sample_inputs,
)
from onnxfq.remedies.weighted_layers import WeightedLayer
from onnxfq.runtime.session import Progress


class RayInputs:
    """Inputs of layers over feeds that a cluster holds, which reads them once."""

    def __init__(
        self,
        cluster: Cluster,
        model: Model,
        layers: Sequence[WeightedLayer],
        feeds: Iterable[Feed],
        memory: int = MOMENTS_MEMORY,
    ) -> None:
        """Send model and feeds.

        Args:
            cluster: connected as long as this is used.
            model: the float model; its workers need onnxfq and the same kind of processor.
            layers: of `find_layers`.
            feeds: the data.
            memory: bytes that the runs of a worker, and its temporary file, may each take.
        """
        self._cluster, self._layers, self._memory = cluster, layers, memory
        self._keys = layer_keys(layers)
        opening = partial(FloatRuns, replace(model), read_tensors(layers), 1, memory)
        self._opened = cluster.put_opening(opening)
        self._shards = [(first, cluster.put(shard)) for first, shard in split_shards(copy_feeds(feeds))]

    def ranges(
        self, progress: Progress | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> dict[InputKey, ChannelEnds]:
        """Return the ends of each input, none once `stopped`; raises as `collect_moments`."""
        started = [
            self._cluster.start(_shard_ranges, self._opened, self._keys, first, held=[shard])[0]
            for first, shard in self._shards
        ]
        ranges: dict[InputKey, ChannelEnds] = {}
        for (first, _), sent in zip(self._shards, started, strict=True):
            if progress is not None:
                progress(first)
            for key, ends in self._cluster.fetch(sent).items():
                ranges[key] = ranges[key].merge(ends) if key in ranges else ends
            if stopped():
                return {}
        return ranges

    def moments(self, samples: int, ranges: Mapping[InputKey, Ends]) -> Part:
        """Return the moments of all layers.

        Args:
            samples: number of samples over which the rows are spread.
            ranges: decide the grids.
        """
        how = self._layers, samples, self._memory, ranges

        @cache
        def start() -> list[list[Sent]]:
            """Return the sums of each key, for each part of the feeds."""
            size = max(1, -(-len(self._shards) // max(1, self._cluster.workers())))
            parts = [self._shards[first : first + size] for first in range(0, len(self._shards), size)]
            return [
                self._cluster.start(
                    _part_sums,
                    self._opened,
                    *how,
                    part[0][0],
                    held=[shard for _, shard in part],
                    results=len(self._keys),
                )
                for part in parts
            ]

        def read(number: int) -> MomentSums:
            parts: Iterator[MomentSums] = (self._cluster.fetch(part[number], keep=True) for part in start())
            return reduce(MomentSums.merge, parts)

        keys = enumerate(self._keys)
        return self._layers, {key: InputSums(ranges[key], partial(read, number)) for number, key in keys}


def collect_moments_on_ray(
    model: Model, layers: Sequence[WeightedLayer], feeds: Iterable[Feed], address: str, threads: int = 0
) -> Iterator[tuple[WeightedLayer, InputMoments]]:
    """Yield what `collect_moments` yields, from the workers of the cluster at `address`."""
    with Cluster(address, threads) as cluster:
        inputs = RayInputs(cluster, model, layers, feeds)
        ranges = {key: value.ends for key, value in inputs.ranges().items()}
        yield from moments_of_layers([inputs.moments(count_samples(model, feeds), ranges)])


def _shard_ranges(
    runs: FloatRuns, keys: Sequence[InputKey], first: int, shards: Iterable[list[Feed]]
) -> dict[InputKey, ChannelEnds]:
    inputs = [ObservedInput(*key) for key in keys]
    return runs.observe(ENDS, inputs, chain.from_iterable(shards), Tally(first))


def _part_sums(
    runs: FloatRuns,
    layers: Sequence[WeightedLayer],
    samples: int,
    memory: int,
    ranges: Mapping[InputKey, Ends],
    first: int,
    shards: Iterable[list[Feed]],
) -> Iterator[MomentSums]:
    """Yield the sums of each input; Ray takes them one after the other, so that memory holds one."""
    parts = sample_inputs(runs, layers, _Feeds(shards), samples, memory, ranges, first)
    return (value.read() for _, value in moments_of_inputs(parts))


@dataclass(frozen=True)
class _Feeds:
    """The feeds of some shards, which come one after the other, as often as they are read."""

    shards: Iterable[list[Feed]]

    def __iter__(self) -> Iterator[Feed]:
        return chain.from_iterable(self.shards)
